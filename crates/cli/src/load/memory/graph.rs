//! PageRank over a generated graph.

use super::program::{Batch, Program, addresses};
use super::truth::Watch;
use crate::load::args::MemoryArguments;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use terrace_sim::scattered::mixed;

/// Least number of edges a vertex that memory has room for, as in graphs of the Graph500.
const DEGREE: u64 = 16;
/// Chance in 256 that the source of an edge has a 0 in a bit, by that bit of its target (0, 1).
/// That is R-MAT (Chakrabarti, Zhan, Faloutsos 2004) with the parameters of the Graph500. A row of
/// the matrix at a time, the chances are 0.57 / (0.57 + 0.19) and 0.19 / (0.19 + 0.05).
const ZERO_AFTER: [u8; 2] = [192, 203];
/// Share of all edges that go to a vertex with a 0 in a given bit.
const FROM_ZERO: f64 = 0.57 + 0.19;
/// Odd factor that spreads the numbers of vertices: hubs are not neighbours in memory.
const SPREAD: u32 = 0x9E37_79B1;
/// Inverse of [`SPREAD`] modulo 2^32. Newton's iteration doubles the bits that are right, of which
/// there are three.
const SPREAD_INVERSE: u32 = {
    let (mut inverse, mut round) = (SPREAD, 0);
    while round < 4 {
        inverse = inverse.wrapping_mul(2u32.wrapping_sub(SPREAD.wrapping_mul(inverse)));
        round += 1;
    }
    inverse
};
/// PageRank's damping factor (Brin and Page 1998).
const DAMPING: f32 = 0.85;
/// Vertices of a batch: some hundreds of edges.
const BATCH: u32 = 16;

/// A graph in one array of words:
/// - where each vertex's edges in begin,
/// - what a vertex gives along each of its edges out,
/// - how many edges out each vertex has,
/// - the vertices from which all edges come.
///
/// A vertex's rank is computed from what the others give now, not in the step before (chaotic
/// iteration: Chazan, Miranker 1969), so threads need not wait for one another.
#[derive(Debug)]
pub struct Graph {
    words: Vec<AtomicU32>,
    /// Number of vertices, a power of two.
    vertices: u32,
    seed: u64,
    /// Checksum of the words that do not change during the load.
    sum: u64,
}

impl Graph {
    /// Number of vertices of a graph of that size, in bytes. More threads have nothing to do.
    pub fn vertices(size: u64) -> u32 {
        1 << (size / 4 / (DEGREE + 3)).ilog2()
    }

    /// A graph in memory of `arguments.size` bytes.
    pub fn build(arguments: &MemoryArguments) -> Graph {
        let words = arguments.size / 4;
        let vertices = Graph::vertices(arguments.size);
        let expected = words - 3 * u64::from(vertices) - 1;
        let mut graph = Graph {
            words: Vec::with_capacity(words as usize),
            vertices,
            seed: arguments.seed,
            sum: 0,
        };
        let (bits, mut first) = (vertices.ilog2(), 0.0);
        for vertex in 0..vertices {
            graph.words.push(AtomicU32::new((first as u64).min(expected) as u32));
            let ones = graph.name(vertex).count_ones() as i32;
            first +=
                expected as f64 * FROM_ZERO.powi(bits as i32 - ones) * (1.0 - FROM_ZERO).powi(ones);
        }
        // The sum of all chances is 1, but for rounding.
        let edges = (first as u64).min(expected) as u32;
        graph.words.push(AtomicU32::new(edges));
        graph.words.extend((0..2 * vertices).map(|_| AtomicU32::new(0)));
        for vertex in 0..vertices {
            let [begin, end] = graph.edges_of(vertex, &mut ());
            for edge in begin..end {
                let from = graph.other_end(graph.name(vertex), edge);
                graph.words.push(AtomicU32::new(from));
                graph.degree(from).fetch_add(1, Relaxed);
            }
        }
        (0..vertices).for_each(|vertex| graph.give(vertex, 1.0 / vertices as f32));
        graph.sum = graph.summed();
        graph
    }

    /// The vertex's number in the matrix; a permutation.
    fn name(&self, vertex: u32) -> u32 {
        vertex.wrapping_mul(SPREAD) & (self.vertices - 1)
    }

    /// The vertex that has this number.
    fn named(&self, name: u32) -> u32 {
        name.wrapping_mul(SPREAD_INVERSE) & (self.vertices - 1)
    }

    /// Where an edge of the vertex of that number comes from: bit by bit, with eight bits of chance
    /// for each.
    fn other_end(&self, name: u32, edge: u32) -> u32 {
        let mut other = 0;
        for begin in (0..self.vertices.ilog2()).step_by(8) {
            for (chance, bit) in mixed(self.seed ^ u64::from(edge) << 8 ^ u64::from(begin))
                .to_le_bytes()
                .into_iter()
                .zip(begin..)
            {
                other |= u32::from(chance >= ZERO_AFTER[(name >> bit & 1) as usize]) << bit;
            }
        }
        self.named(other)
    }

    /// The vertex's first edge in, and the one behind its last.
    fn edges_of(&self, vertex: u32, watch: &mut impl Watch) -> [u32; 2] {
        [vertex, vertex + 1].map(|at| {
            let word = &self.words[at as usize];
            watch.touches(word);
            word.load(Relaxed)
        })
    }

    fn given(&self, vertex: u32) -> &AtomicU32 {
        &self.words[self.vertices as usize + 1 + vertex as usize]
    }

    fn degree(&self, vertex: u32) -> &AtomicU32 {
        &self.words[2 * self.vertices as usize + 1 + vertex as usize]
    }

    fn ends(&self) -> &[AtomicU32] {
        &self.words[3 * self.vertices as usize + 1..]
    }

    /// A vertex's rank goes along its edges.
    fn give(&self, vertex: u32, rank: f32) {
        let degree = self.degree(vertex).load(Relaxed).max(1);
        self.given(vertex).store((rank / degree as f32).to_bits(), Relaxed);
    }

    /// Checksum of all words but those that threads change, which are what vertices give.
    fn summed(&self) -> u64 {
        let changes = self.vertices as usize + 1..2 * self.vertices as usize + 1;
        let stays = self.words.iter().enumerate().filter(|(at, _)| !changes.contains(at));
        stays.fold(self.seed, |sum, (_, word)| mixed(sum ^ u64::from(word.load(Relaxed))))
    }

    /// Computes a vertex's rank anew; how many edges it took, or `None` if something is not as it
    /// should be.
    fn visit(&self, vertex: u32, watch: &mut impl Watch) -> Option<u64> {
        let [begin, end] = self.edges_of(vertex, watch);
        let mut sum = 0.0;
        for from in self.ends().get(begin as usize..end as usize)? {
            watch.touches(from);
            let from = Some(from.load(Relaxed)).filter(|from| *from < self.vertices)?;
            watch.touches(self.given(from));
            sum += f32::from_bits(self.given(from).load(Relaxed));
        }
        let rank = (1.0 - DAMPING) / self.vertices as f32 + DAMPING * sum;
        watch.touches(self.degree(vertex));
        watch.touches(self.given(vertex));
        self.give(vertex, rank);
        // Ranks are chances: their sum is 1, less what is lost at vertices that give nothing.
        (0.0..=1.0).contains(&rank).then_some(u64::from(end - begin))
    }
}

/// The vertices that a thread visits, and the next of them.
#[derive(Debug)]
pub struct Way {
    vertices: Range<u32>,
    next: u32,
}

impl Program for Graph {
    type Way = Way;

    fn way(&self, thread: usize, threads: usize) -> Way {
        let begin = |thread: usize| (self.vertices as usize * thread / threads) as u32;
        Way { vertices: begin(thread)..begin(thread + 1), next: begin(thread) }
    }

    fn batch(&self, way: &mut Way, watch: &mut impl Watch) -> Batch {
        let mut done = Batch::default();
        for _ in 0..BATCH {
            match self.visit(way.next, watch) {
                Some(edges) => done.accesses += edges,
                None => done.wrong += 1,
            }
            done.writes += 1;
            way.next =
                if way.next + 1 < way.vertices.end { way.next + 1 } else { way.vertices.start };
        }
        done
    }

    /// Counts what is not as it should be. A lost write cannot be told: ranks are not counted.
    fn check(&self, _writes: u64) -> u64 {
        let ranks =
            (0..self.vertices).map(|vertex| f32::from_bits(self.given(vertex).load(Relaxed)));
        ranks.filter(|given| !(0.0..=1.0).contains(given)).count() as u64
            + u64::from(self.summed() != self.sum)
    }

    fn place(&self) -> Range<usize> {
        addresses(&self.words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::memory::tests::arguments;

    fn graph() -> Graph {
        Graph::build(&arguments("graph", 4 << 20))
    }

    #[test]
    fn names_are_a_permutation() {
        let graph = graph();
        assert!((0..graph.vertices).all(|vertex| graph.named(graph.name(vertex)) == vertex));
    }

    #[test]
    fn hubs_have_their_share_and_are_not_neighbours() {
        let graph = graph();
        assert!((15 << 18..=4 << 20).contains(&graph.place().len()), "{}", graph.place().len());
        let mut degrees: Vec<(u32, u32)> = (0..graph.vertices)
            .map(|vertex| (graph.degree(vertex).load(Relaxed), vertex))
            .collect();
        let edges: u32 = degrees.iter().map(|(degree, _)| degree).sum();
        assert_eq!(edges as usize, graph.ends().len());
        degrees.sort_unstable_by(|a, b| b.cmp(a));
        let tenth = &degrees[..degrees.len() / 10];
        assert!(
            tenth.iter().map(|(degree, _)| degree).sum::<u32>() > edges / 2,
            "{:?}",
            &degrees[..10]
        );
        let low = tenth.iter().filter(|(_, vertex)| *vertex < graph.vertices / 2).count();
        assert!(
            low.abs_diff(tenth.len() / 2) < tenth.len() / 10,
            "{low} of {} hubs are in the lower half",
            tenth.len()
        );
    }

    /// Ranks as this computes them, in turns of threads, are those of the definition: steps over
    /// all vertices at once.
    #[test]
    fn ranks_are_those_of_the_definition() {
        let graph = graph();
        let n = graph.vertices as usize;
        let mut ranks = vec![1.0 / n as f64; n];
        for _ in 0..100 {
            let given: Vec<f64> = (0..n)
                .map(|v| ranks[v] / f64::from(graph.degree(v as u32).load(Relaxed).max(1)))
                .collect();
            for (vertex, rank) in (0..).zip(&mut ranks) {
                let [begin, end] = graph.edges_of(vertex, &mut ());
                let sum: f64 = graph.ends()[begin as usize..end as usize]
                    .iter()
                    .map(|from| given[from.load(Relaxed) as usize])
                    .sum();
                *rank = (1.0 - f64::from(DAMPING)) / n as f64 + f64::from(DAMPING) * sum;
            }
        }
        let mut ways = [graph.way(0, 2), graph.way(1, 2)];
        for _ in 0..30 * n / BATCH as usize {
            for way in &mut ways {
                assert_eq!(graph.batch(way, &mut ()).wrong, 0);
            }
        }
        assert_eq!(graph.check(0), 0);
        for (vertex, rank) in (0..).zip(&ranks) {
            let degree = graph.degree(vertex).load(Relaxed).max(1);
            let ours =
                f64::from(f32::from_bits(graph.given(vertex).load(Relaxed))) * f64::from(degree);
            assert!((ours - rank).abs() < rank * 1e-3, "{vertex}: {ours} instead of {rank}");
        }
    }

    #[test]
    fn damage_is_seen() {
        let graph = graph();
        graph.ends()[5].fetch_xor(1 << 31, Relaxed);
        assert_eq!(graph.check(0), 1);
        let mut way = graph.way(0, 1);
        let wrong: u64 =
            (0..graph.vertices / BATCH).map(|_| graph.batch(&mut way, &mut ()).wrong).sum();
        assert_eq!(wrong, 1);
        graph.ends()[5].fetch_xor(1 << 31, Relaxed);
        graph.given(9).store(f32::NAN.to_bits(), Relaxed);
        assert_eq!(graph.check(0), 1);
    }
}
