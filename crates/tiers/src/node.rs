//! A NUMA node whose memory is farther away than DRAM: another socket's, CXL, persistent memory.
//! What there is, how much of it is free, and how much slower it is, from sysfs.
//!
//! Nothing is stored through here: pages stay in the page table and are moved by `move_pages`. A
//! [`Node`] is what a tier over one must know.
//!
//! Jenga and the systems that it is compared with use such memory in this way (Jenga §2.1, §5).

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::page::PAGE_BYTES;
use crate::swap::meminfo_bytes;

/// A node's memory divided by this stays free, for the kernel and for other programs.
pub const KEEP_FREE: u64 = 64;
/// Bytes of a node that stay free at least; or what the kernel's page allocator wants to have free
/// in reserve, if that is more.
pub const KEEP_FREE_BYTES: u64 = 8 << 20;
/// How much slower far memory is where nothing says it.
const SLOWNESS_ASSUMED: f64 = 2.0;

/// A node at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeView {
    /// The kernel's number.
    pub number: u32,
    /// Whether CPUs are in the node.
    pub has_cpus: bool,
    /// Bytes of the node's memory; 0 if it has none online.
    pub total_bytes: u64,
    /// Bytes that can be had at once: free, or files' pages not used of late.
    pub free_bytes: u64,
    /// Free memory below which the kernel begins to make room: the high watermarks of its zones.
    pub watermark_bytes: u64,
    /// Distance to each node, in the order of their numbers; 10 is to itself.
    distances: Vec<u32>,
    /// How long a read of this node's memory by the nearest CPUs takes, ns, where the firmware says
    /// it (HMAT).
    read_latency_ns: Option<u32>,
}

/// All nodes of a machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Nodes {
    /// The nodes by their numbers.
    pub all: Vec<NodeView>,
    /// What this process may use; `None` if that cannot be read.
    allowed: Option<Vec<u32>>,
}

/// Why a node is no tier here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    /// The kernel shows no such node.
    #[error(
        "this machine has no node {node}: there is {there}; write one of them that is not where pages start"
    )]
    NotThere {
        /// Number of the node.
        node: u32,
        /// Nodes that there are.
        there: String,
    },
    /// The node has no memory that is online.
    #[error(
        "node {node} has no memory online: for CXL or persistent memory, make it system RAM first \
         (cxl create-region -t ram, or daxctl reconfigure-device -m system-ram)"
    )]
    NoMemory {
        /// Number of the node.
        node: u32,
    },
    /// The process may not use it.
    #[error(
        "this process may not use memory of node {node}: its cpuset allows {allowed}; see cpuset.mems of its control group"
    )]
    Forbidden {
        /// Number of the node.
        node: u32,
        /// Nodes that the process may use.
        allowed: String,
    },
    /// No other node has memory that pages could start in (with CPUs, if this one has some).
    #[error(
        "node {node} is the only one with CPUs and memory that may be used: pages start there, so it is the tier dram"
    )]
    IsDram {
        /// Number of the node.
        node: u32,
    },
}

impl Nodes {
    /// The nodes of this machine.
    pub fn of_machine() -> Nodes {
        Nodes::below(Path::new("/"))
    }

    /// The nodes according to a directory tree that has `proc` and `sys` in it. What cannot be read
    /// is taken for absent.
    pub fn below(root: &Path) -> Nodes {
        // Long where there are many CPUs.
        Nodes::with_zones(root, &fs::read_to_string(root.join("proc/zoneinfo")).unwrap_or_default())
    }

    fn with_zones(root: &Path, zones: &str) -> Nodes {
        let directory = root.join("sys/devices/system/node");
        let number = |name: &str| name.strip_prefix("node")?.parse::<u32>().ok();
        let names =
            fs::read_dir(&directory).into_iter().flatten().flatten().map(|entry| entry.file_name());
        let mut numbers: Vec<u32> = names.filter_map(|name| number(name.to_str()?)).collect();
        numbers.sort_unstable();
        let all = numbers
            .into_iter()
            .map(|number| NodeView::read(number, &directory.join(format!("node{number}")), zones))
            .collect();
        let status = fs::read_to_string(root.join("proc/self/status")).unwrap_or_default();
        let allowed =
            status.lines().find_map(|line| line.strip_prefix("Mems_allowed_list:")).map(numbers_of);
        Nodes { all, allowed }
    }

    /// A node by its number.
    pub fn node(&self, number: u32) -> Option<&NodeView> {
        self.all.iter().find(|node| node.number == number)
    }

    fn allows(&self, number: u32) -> bool {
        self.allowed.as_ref().is_none_or(|allowed| allowed.contains(&number))
    }

    /// Whether memory of the node can be a tier of this process.
    ///
    /// # Errors
    /// [`NodeError`] says why not.
    pub fn check(&self, node: u32) -> Result<(), NodeError> {
        let with_memory =
            || self.all.iter().filter(|node| node.total_bytes > 0).map(|node| node.number);
        let Some(view) = self.node(node) else {
            let there: Vec<String> = with_memory().map(|number| format!("node {number}")).collect();
            let there =
                if there.is_empty() { "none that it shows".to_owned() } else { there.join(", ") };
            return Err(NodeError::NotThere { node, there });
        };
        if view.total_bytes == 0 {
            return Err(NodeError::NoMemory { node });
        }
        if !self.allows(node) {
            let allowed: Vec<String> = self.allowed.iter().flatten().map(u32::to_string).collect();
            return Err(NodeError::Forbidden {
                node,
                allowed: format!("node {}", allowed.join(", ")),
            });
        }
        self.near(node)
            .filter(|near| near.has_cpus || !view.has_cpus)
            .map(drop)
            .ok_or(NodeError::IsDram { node })
    }

    /// The node in which pages start, seen from a far one. It is one of the others that may be
    /// used, with CPUs if any has some. Of those it is the one with the most memory to be had.
    fn near(&self, far: u32) -> Option<&NodeView> {
        let others = self
            .all
            .iter()
            .filter(|node| node.number != far && node.total_bytes > 0 && self.allows(node.number));
        others.max_by_key(|node| (node.has_cpus, node.free_bytes, std::cmp::Reverse(node.number)))
    }

    /// How many times as long a read of `far` takes as one of `near`, by what the firmware says: of
    /// latencies, or else of distances. At least 1.
    fn slowness(&self, far: &NodeView, near: &NodeView) -> f64 {
        // Of memory with CPUs beside it latencies are those that its own CPUs see.
        let by_latency = || {
            Some(far).filter(|far| !far.has_cpus).and_then(|far| {
                Some(f64::from(far.read_latency_ns?) / f64::from(near.read_latency_ns?))
            })
        };
        let by_distance = || {
            let at = self.all.iter().position(|node| node.number == far.number)?;
            Some(f64::from(*near.distances.get(at)?) / 10.0)
        };
        by_latency().or_else(by_distance).unwrap_or(SLOWNESS_ASSUMED).clamp(1.0, 10.0)
    }
}

impl NodeView {
    fn read(number: u32, directory: &Path, zones: &str) -> NodeView {
        let text = |name: &str| fs::read_to_string(directory.join(name)).unwrap_or_default();
        let meminfo = text("meminfo");
        let bytes =
            |name: &str| meminfo_bytes(&meminfo, &format!("Node {number} "), name).unwrap_or(0);
        NodeView {
            number,
            has_cpus: !text("cpulist").trim().is_empty(),
            total_bytes: bytes("MemTotal"),
            free_bytes: bytes("MemFree") + bytes("Inactive(file)"),
            watermark_bytes: watermark_pages(zones, number) * PAGE_BYTES as u64,
            distances: text("distance")
                .split_whitespace()
                .filter_map(|distance| distance.parse().ok())
                .collect(),
            read_latency_ns: text("access0/initiators/read_latency")
                .trim()
                .parse()
                .ok()
                .filter(|ns| *ns > 0),
        }
    }
}

/// Pages of the high watermarks of a node, in the text of `/proc/zoneinfo`.
fn watermark_pages(zones: &str, node: u32) -> u64 {
    let mut here = false;
    let pages = zones.lines().filter_map(|line| {
        if let Some(rest) = line.strip_prefix("Node ") {
            here = rest.split_once(',').is_some_and(|(number, _)| number.parse() == Ok(node));
        }
        // Of the zone; those of its CPUs are written `high:`.
        line.trim_start().strip_prefix("high ").filter(|_| here)?.trim().parse::<u64>().ok()
    });
    pages.sum()
}

/// The numbers of a list such as `0-3,8`.
fn numbers_of(list: &str) -> Vec<u32> {
    terrace_os::ranges_of(list).flatten().flatten().collect()
}

/// What a tier over a node knows of it. It is polled by one thread; any may read.
#[derive(Default)]
pub struct Node {
    number: u32,
    near: AtomicU32,
    slowness: AtomicU32,
    /// Pages that may still be put there; below 0 where memory is missing from what is left to
    /// others.
    room_pages: AtomicI64,
    /// Room for pages that are exchanged with others on the node, in pages. It keeps less memory
    /// free for other users than `room_pages` does.
    buffer_pages: AtomicI64,
    /// Bytes that the kernel wants to have free there, once that is known.
    watermark_bytes: AtomicU64,
    /// Whether the node is there, and this process may use it.
    usable: AtomicBool,
}

impl Node {
    /// The node of that number, of which nothing is known before the first [`poll`](Node::poll).
    pub fn new(number: u32) -> Node {
        Node { number, ..Node::default() }
    }

    /// The kernel's number of the node.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Polls the machine, in some 0.2 ms for each node.
    ///
    /// # Errors
    /// [`NodeError`] if it is not a tier (any more).
    pub fn poll(&self) -> Result<(), NodeError> {
        match self.watermark_bytes.load(Relaxed) {
            0 => self.seen(&Nodes::of_machine()),
            _ => self.seen(&Nodes::with_zones(Path::new("/"), "")),
        }
    }

    /// Takes note of what a poll saw.
    ///
    /// # Errors
    /// As [`Node::poll`].
    pub fn seen(&self, machine: &Nodes) -> Result<(), NodeError> {
        if machine.all.is_empty() && self.watermark_bytes.load(Relaxed) > 0 {
            // The program has changed its root: what was known is as good as anything.
            return Ok(());
        }
        let checked = machine.check(self.number);
        self.usable.store(checked.is_ok(), Relaxed);
        if let (Some(far), Some(near)) = (machine.node(self.number), machine.near(self.number)) {
            self.near.store(near.number, Relaxed);
            self.slowness.store((machine.slowness(far, near) * 1000.0) as u32, Relaxed);
            let watermark_bytes =
                self.watermark_bytes.load(Relaxed).max(far.watermark_bytes).max(1);
            self.watermark_bytes.store(watermark_bytes, Relaxed);
            let room = |kept_bytes: u64| {
                (far.free_bytes as i64 - kept_bytes.max(watermark_bytes) as i64) / PAGE_BYTES as i64
            };
            self.room_pages
                .store(room((far.total_bytes / KEEP_FREE).max(KEEP_FREE_BYTES)), Relaxed);
            self.buffer_pages.store(room(KEEP_FREE_BYTES / 2), Relaxed);
        }
        checked
    }

    /// The node that pages are restored to.
    pub fn near(&self) -> u32 {
        self.near.load(Relaxed)
    }

    /// How many times as long a read takes in the node as in DRAM.
    pub fn slowness(&self) -> f64 {
        (f64::from(self.slowness.load(Relaxed)) / 1000.0).max(1.0)
    }

    /// Pages that may still be put on the node.
    pub fn room_pages(&self) -> u64 {
        if self.is_usable() { self.room_pages.load(Relaxed).max(0) as u64 } else { 0 }
    }

    /// Pages that may be put on the node if as many are to be restored. What is left to others is
    /// the room in which they change places.
    pub fn buffer_pages(&self) -> u64 {
        if self.is_usable() { self.buffer_pages.load(Relaxed).max(0) as u64 } else { 0 }
    }

    /// Whether the node can be used at all.
    pub fn is_usable(&self) -> bool {
        self.usable.load(Relaxed)
    }

    /// Notes that pages went to the node since the last poll.
    pub fn took(&self, pages: u64) {
        for room in [&self.room_pages, &self.buffer_pages] {
            room.fetch_sub(pages as i64, Relaxed);
        }
    }

    /// Notes that pages left the node since the last poll.
    pub fn gave(&self, pages: u64) {
        for room in [&self.room_pages, &self.buffer_pages] {
            room.fetch_add(pages as i64, Relaxed);
        }
    }

    /// Notes that the kernel found no room there, whatever it says of what is free: until the next
    /// poll.
    pub fn is_full(&self) {
        for room in [&self.room_pages, &self.buffer_pages] {
            room.fetch_min(0, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> Nodes {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Nodes::below(root.path())
    }

    const NODES: [(&str, &str); 7] = [
        ("sys/devices/system/node/node0/cpulist", "0-1\n"),
        (
            "sys/devices/system/node/node0/meminfo",
            "Node 0 MemTotal:  1048576 kB\nNode 0 MemFree:  524288 kB\n",
        ),
        ("sys/devices/system/node/node0/distance", "10 20\n"),
        ("sys/devices/system/node/node1/cpulist", "\n"),
        (
            "sys/devices/system/node/node1/meminfo",
            "Node 1 MemTotal: 1048576 kB\nNode 1 MemFree: 262144 kB\nNode 1 Inactive(file): 4096 kB\n",
        ),
        ("sys/devices/system/node/node1/distance", "20 10\n"),
        ("proc/self/status", "Name:\tx\nMems_allowed_list:\t0-1\n"),
    ];

    #[test]
    fn a_far_node_has_what_is_free_and_is_as_slow_as_it_is_far() {
        let machine = machine(&NODES);
        assert_eq!(machine.check(1), Ok(()));
        let node = Node::new(1);
        assert_eq!(node.room_pages(), 0, "nobody looked");
        node.seen(&machine).unwrap();
        // 256 + 4 MiB less a 64th of a GiB.
        assert_eq!((node.near(), node.slowness(), node.room_pages()), (0, 2.0, (260 - 16) << 8));
        node.took(100);
        assert_eq!(node.room_pages(), (244 << 8) - 100);
        node.gave(50);
        assert_eq!((node.room_pages(), node.buffer_pages()), ((244 << 8) - 50, (256 << 8) - 50));
        node.took(250 << 8);
        assert!(
            node.room_pages() == 0 && node.buffer_pages() == (6 << 8) - 50,
            "what is left to others is there for exchange"
        );
        node.is_full();
        assert_eq!((node.room_pages(), node.buffer_pages()), (0, 0));
    }

    #[test]
    fn what_the_kernel_wants_to_have_free_stays_free() {
        let zones = "Node 0, zone    DMA32\n  pages free     235001\n        min      8140\n        high     12210\n  pagesets\n    cpu: 0\n              high: 378\n\
                     Node 1, zone   Normal\n        high     10000\nNode 1, zone  Movable\n        high     240\nNode 10, zone Normal\n        high     7\n";
        assert_eq!(
            (watermark_pages(zones, 0), watermark_pages(zones, 1), watermark_pages(zones, 2)),
            (12_210, 10_240, 0)
        );
        let mut files = NODES.to_vec();
        files.push(("proc/zoneinfo", zones));
        let node = Node::new(1);
        node.seen(&machine(&files)).unwrap();
        assert_eq!(node.room_pages(), (260 - 40) << 8);
        // A program that sees no /sys any more.
        assert!(node.seen(&machine(&[])).is_ok() && node.room_pages() > 0);
    }

    #[test]
    fn latencies_say_more_than_distances() {
        let mut files = NODES.to_vec();
        files.push(("sys/devices/system/node/node0/access0/initiators/read_latency", "80\n"));
        files.push(("sys/devices/system/node/node1/access0/initiators/read_latency", "250\n"));
        let node = Node::new(1);
        node.seen(&machine(&files)).unwrap();
        assert_eq!(node.slowness(), 3.125);
    }

    #[test]
    fn what_is_no_tier_is_said_with_its_reason() {
        let said =
            |files: &[(&str, &str)], node| machine(files).check(node).unwrap_err().to_string();
        assert!(said(&NODES, 7).contains("no node 7: there is node 0, node 1"));
        assert!(said(&[], 1).contains("none that it shows"));
        let mut forbidden = NODES;
        forbidden[6].1 = "Mems_allowed_list:\t0\n";
        assert!(said(&forbidden, 1).contains("allows node 0; see cpuset.mems"));
        let mut empty = NODES;
        empty[4].1 = "Node 1 MemTotal: 0 kB\n";
        assert!(said(&empty, 1).contains("no memory online"));
        assert!(said(&empty, 0).contains("the only one"), "pages start there");
        let node = Node::new(1);
        node.seen(&machine(&NODES)).unwrap();
        assert!(
            node.seen(&machine(&forbidden)).is_err() && node.room_pages() == 0,
            "a cpuset may change"
        );
        assert!(said(&NODES, 0).contains("pages start there"));
        let mut sockets = NODES.to_vec();
        sockets[3].1 = "2-3\n";
        sockets.push(("sys/devices/system/node/node0/access0/initiators/read_latency", "80\n"));
        sockets.push(("sys/devices/system/node/node1/access0/initiators/read_latency", "80\n"));
        let other = Node::new(0);
        other.seen(&machine(&sockets)).unwrap();
        assert_eq!((other.near(), other.slowness()), (1, 2.0), "by the distance");
    }

    #[test]
    fn lists_of_numbers() {
        assert_eq!(numbers_of("\t0-2,8\n"), [0, 1, 2, 8]);
        assert!(numbers_of("\n").is_empty());
    }
}
