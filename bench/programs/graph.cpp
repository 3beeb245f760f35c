/*
 * Graph kernels as in the GAP benchmark suite, on a Kronecker graph (Graph500's parameters):
 * PageRank, breadth-first search, betweenness centrality.
 *
 *     graph pr|bfs|bc [SCALE [DEGREE [ROUNDS [SEED]]]]
 *
 * 2^SCALE vertices; rounds: iterations of PageRank, sources of the others.
 */
#include "random.h"
#include <algorithm>
#include <string>
#include <vector>

using std::vector;

struct Graph {
    vector<uint64_t> start;
    vector<uint32_t> neighbours;
    uint32_t vertices() const { return (uint32_t)start.size() - 1; }
    uint64_t degree(uint32_t v) const { return start[v + 1] - start[v]; }
};

/* Undirected: every edge in both directions. Numbers of vertices are scattered, as the generator's
 * tell their degree. */
static Graph kronecker(int scale, uint64_t degree, uint64_t *state) {
    uint64_t vertices = 1ull << scale, edges = vertices * degree / 2;
    vector<uint32_t> names(vertices);
    for (uint64_t v = 0; v < vertices; v++)
        names[v] = (uint32_t)v;
    for (uint64_t v = vertices - 1; v > 0; v--)
        std::swap(names[v], names[random_below(state, v + 1)]);
    vector<std::pair<uint32_t, uint32_t>> list(edges);
    for (auto &edge : list) {
        uint64_t from = 0, to = 0;
        for (int bit = 0; bit < scale; bit++) {
            /* a, b, c = 0.57, 0.19, 0.19 */
            double chance = random_unit(state);
            from = from << 1 | (chance >= 0.76);
            to = to << 1 | ((chance >= 0.57 && chance < 0.76) || chance >= 0.95);
        }
        edge = {names[from], names[to]};
    }
    Graph graph;
    graph.start.assign(vertices + 1, 0);
    for (auto &[from, to] : list)
        graph.start[from + 1]++, graph.start[to + 1]++;
    for (uint64_t v = 0; v < vertices; v++)
        graph.start[v + 1] += graph.start[v];
    graph.neighbours.resize(edges * 2);
    vector<uint64_t> next(graph.start.begin(), graph.start.end() - 1);
    for (auto &[from, to] : list) {
        graph.neighbours[next[from]++] = to;
        graph.neighbours[next[to]++] = from;
    }
    return graph;
}

static double page_rank(const Graph &graph, uint64_t rounds) {
    uint32_t vertices = graph.vertices();
    vector<float> rank(vertices, 1.0f / vertices), given(vertices);
    for (uint64_t round = 0; round < rounds; round++) {
        for (uint32_t v = 0; v < vertices; v++)
            given[v] = graph.degree(v) ? rank[v] / graph.degree(v) : 0;
        for (uint32_t v = 0; v < vertices; v++) {
            float sum = 0;
            for (uint64_t at = graph.start[v]; at < graph.start[v + 1]; at++)
                sum += given[graph.neighbours[at]];
            rank[v] = 0.15f / vertices + 0.85f * sum;
        }
    }
    return *std::max_element(rank.begin(), rank.end());
}

static uint32_t some_source(const Graph &graph, uint64_t *state) {
    uint32_t source;
    do
        source = (uint32_t)random_below(state, graph.vertices());
    while (!graph.degree(source));
    return source;
}

static uint64_t search(const Graph &graph, uint32_t source) {
    vector<int32_t> parent(graph.vertices(), -1);
    vector<uint32_t> queue{source};
    parent[source] = (int32_t)source;
    for (size_t at = 0; at < queue.size(); at++)
        for (uint64_t edge = graph.start[queue[at]]; edge < graph.start[queue[at] + 1]; edge++) {
            uint32_t to = graph.neighbours[edge];
            if (parent[to] < 0) {
                parent[to] = (int32_t)queue[at];
                queue.push_back(to);
            }
        }
    return queue.size();
}

/* Brandes 2001. */
static void centrality(const Graph &graph, uint32_t source, vector<float> &scores) {
    uint32_t vertices = graph.vertices();
    vector<int32_t> depth(vertices, -1);
    vector<double> paths(vertices);
    vector<float> share(vertices);
    vector<uint32_t> order{source};
    depth[source] = 0;
    paths[source] = 1;
    for (size_t at = 0; at < order.size(); at++) {
        uint32_t from = order[at];
        for (uint64_t edge = graph.start[from]; edge < graph.start[from + 1]; edge++) {
            uint32_t to = graph.neighbours[edge];
            if (depth[to] < 0) {
                depth[to] = depth[from] + 1;
                order.push_back(to);
            }
            if (depth[to] == depth[from] + 1)
                paths[to] += paths[from];
        }
    }
    for (size_t at = order.size(); at-- > 0;) {
        uint32_t from = order[at];
        for (uint64_t edge = graph.start[from]; edge < graph.start[from + 1]; edge++) {
            uint32_t to = graph.neighbours[edge];
            if (depth[to] == depth[from] + 1)
                share[from] += (float)(paths[from] / paths[to]) * (1 + share[to]);
        }
        if (from != source)
            scores[from] += share[from];
    }
}

int main(int count, char **words) {
    std::string kernel = count > 1 ? words[1] : "pr";
    int scale = (int)argument(count, words, 2, 20);
    uint64_t degree = argument(count, words, 3, 16), rounds = argument(count, words, 4, kernel == "pr" ? 5 : kernel == "bfs" ? 6 : 2),
             state = argument(count, words, 5, 1);
    Graph graph = kronecker(scale, degree, &state);
    measured_part_begins();
    double result = 0;
    if (kernel == "pr") {
        result = page_rank(graph, rounds);
    } else if (kernel == "bfs") {
        for (uint64_t round = 0; round < rounds; round++)
            result += (double)search(graph, some_source(graph, &state));
    } else if (kernel == "bc") {
        vector<float> scores(graph.vertices());
        for (uint64_t round = 0; round < rounds; round++)
            centrality(graph, some_source(graph, &state), scores);
        result = *std::max_element(scores.begin(), scores.end());
    } else {
        fprintf(stderr, "graph: which kernel? pr, bfs or bc\n");
        return 2;
    }
    measured_part_ends();
    printf("%s %g\n", kernel.c_str(), result);
    return 0;
}
