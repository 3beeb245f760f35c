/*
 * A B+-tree in which nodes, their arrays of keys and pointers, and records are objects of their
 * own. It is as the published one that Jenga and Mitosis measure. Keys come in at random; then Zipf
 * or uniform keys are looked up.
 *
 *     btree [KEYS [LOOKUPS [SEED [SKEW in percent, 0: uniform]]]]
 */
#include "random.h"
#include <string.h>

#define ORDER 16

struct record {
    uint64_t value, more[3];
};
struct node {
    uint64_t *keys;
    void **pointers;
    int count, is_leaf;
    struct node *next;
};

static struct node *root;

/* Functions of their own, as there: what allocates tells leaves from the nodes above them. */
__attribute__((noinline)) static struct node *new_node(void) {
    struct node *node = calloc(1, sizeof *node);
    node->keys = malloc(ORDER * sizeof *node->keys);
    node->pointers = malloc((ORDER + 1) * sizeof *node->pointers);
    return node;
}
__attribute__((noinline)) static struct node *new_leaf(void) {
    struct node *leaf = new_node();
    leaf->is_leaf = 1;
    return leaf;
}

/* The first place whose key is larger. */
static int place(const struct node *node, uint64_t key) {
    int at = 0;
    while (at < node->count && node->keys[at] <= key)
        at++;
    return at;
}

/* The right half becomes a node of its own; the key that tells them apart. */
static struct node *split(struct node *node, uint64_t *between) {
    struct node *right = node->is_leaf ? new_leaf() : new_node();
    int left = node->count / 2, from = node->is_leaf ? left : left + 1;
    *between = node->keys[left];
    right->count = node->count - from;
    memcpy(right->keys, node->keys + from, (size_t)right->count * sizeof *right->keys);
    memcpy(right->pointers, node->pointers + from, (size_t)(right->count + !node->is_leaf) * sizeof *right->pointers);
    node->count = left;
    if (node->is_leaf) {
        right->next = node->next;
        node->next = right;
    }
    return right;
}

static void put(struct node *node, int at, uint64_t key, void *pointer) {
    int behind = node->is_leaf ? at : at + 1;
    memmove(node->keys + at + 1, node->keys + at, (size_t)(node->count - at) * sizeof *node->keys);
    memmove(node->pointers + behind + 1, node->pointers + behind, (size_t)(node->count - at) * sizeof *node->pointers);
    node->keys[at] = key;
    node->pointers[behind] = pointer;
    node->count++;
}

/* What came beside the node, if it was full. */
static struct node *insert(struct node *node, uint64_t key, struct record *record, uint64_t *between) {
    int at = place(node, key);
    if (node->is_leaf) {
        put(node, at, key, record);
    } else {
        uint64_t below;
        struct node *beside = insert(node->pointers[at], key, record, &below);
        if (beside)
            put(node, at, below, beside);
    }
    return node->count == ORDER ? split(node, between) : NULL;
}

static struct record *look_up(uint64_t key) {
    struct node *node = root;
    while (!node->is_leaf)
        node = node->pointers[place(node, key)];
    int at = place(node, key);
    return at && node->keys[at - 1] == key ? node->pointers[at - 1] : NULL;
}

int main(int count, char **words) {
    uint64_t keys = argument(count, words, 1, 1000000), lookups = argument(count, words, 2, 4000000), state = argument(count, words, 3, 1);
    double skew = (double)argument(count, words, 4, 99) / 100;
    root = new_leaf();
    /* A walk through all keys in an order that looks like chance: a step that has no factor in
     * common with their number. */
    uint64_t step = keys * 0.618;
    for (uint64_t a = step, b = keys; b;) {
        uint64_t rest = a % b;
        a = b, b = rest;
        if (!b && a != 1)
            step++, a = step, b = keys;
    }
    for (uint64_t at = 0, key = 0; at < keys; at++, key = (key + step) % keys) {
        struct record *record = malloc(sizeof *record);
        record->value = key * 3;
        uint64_t between;
        struct node *beside = insert(root, key, record, &between);
        if (beside) {
            struct node *above = new_node();
            above->keys[0] = between;
            above->pointers[0] = root;
            above->pointers[1] = beside;
            above->count = 1;
            root = above;
        }
    }
    struct zipf zipf = zipf_of(keys, skew);
    uint64_t sum = 0;
    /* A quarter fills the cache. */
    for (uint64_t at = 0; at < lookups; at++) {
        if (at == lookups / 4)
            measured_part_begins();
        uint64_t key = skew > 0 ? scattered(zipf_next(&zipf, &state), keys) : random_below(&state, keys);
        struct record *record = look_up(key);
        if (!record || record->value != key * 3)
            return 1;
        sum += record->value;
    }
    measured_part_ends();
    printf("%llu\n", (unsigned long long)sum);
    return 0;
}
