//! NUMA nodes, and which of them can be a tier: those without a CPU (CXL, persistent memory) above
//! all. Their sizes are left out, because they lag behind on machines whose memory grows.

use super::row::Row;
use terrace_tiers::Nodes;

/// Row: NUMA nodes.
pub fn rows() -> Vec<Row> {
    vec![judge(&Nodes::of_machine())]
}

fn judge(nodes: &Nodes) -> Row {
    let name = "NUMA nodes";
    if nodes.all.is_empty() {
        return Row::ok(name, "not shown by this kernel", "all memory is treated as one node");
    }
    let list = |numbers: &[u32]| numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    let count = nodes.all.len();
    let plural = if count == 1 { "" } else { "s" };
    let slow: Vec<u32> =
        nodes.all.iter().filter(|node| !node.has_cpus).map(|node| node.number).collect();
    let found = if slow.is_empty() {
        format!("{count} node{plural}, with CPUs")
    } else {
        format!("{count} node{plural}; without a CPU: {}", list(&slow))
    };
    let usable: Vec<u32> = nodes
        .all
        .iter()
        .map(|node| node.number)
        .filter(|node| nodes.check(*node).is_ok())
        .collect();
    // Another socket's memory is a tier as well, but seldom what is wanted.
    match slow.iter().find(|node| usable.contains(node)) {
        Some(node) => {
            Row::ok(name, found, format!("far memory can be a tier: --tiers dram,node:{node}"))
        }
        None => match slow.first().and_then(|node| nodes.check(*node).err()) {
            Some(problem) => Row::ok(name, found, format!("no tier of far memory: {problem}")),
            None if usable.is_empty() => Row::ok(name, found, "no slower memory to use as a tier"),
            None => Row::ok(
                name,
                found,
                format!(
                    "memory of another socket can be a tier: --tiers dram,node:{}",
                    usable[usable.len() - 1]
                ),
            ),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_node_without_a_cpu_is_named() {
        let scratch = tempfile::tempdir().unwrap();
        let said = || judge(&Nodes::below(scratch.path()));
        assert_eq!(said().found, "not shown by this kernel");
        let write = |path: &str, text: &str| {
            let path = scratch.path().join("sys/devices/system/node").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("node0/cpulist", "0-3\n");
        write("node0/meminfo", "Node 0 MemTotal: 1024 kB\n");
        assert_eq!(
            (said().found.as_str(), said().consequence.as_str()),
            ("1 node, with CPUs", "no slower memory to use as a tier")
        );
        write("node2/cpulist", "\n");
        assert_eq!(said().found, "2 nodes; without a CPU: 2");
        assert!(said().consequence.contains("no memory online"), "{}", said().consequence);
        write("node2/meminfo", "Node 2 MemTotal: 1024 kB\n");
        assert!(said().consequence.contains("--tiers dram,node:2"), "{}", said().consequence);
        write("node2/cpulist", "4-7\n");
        assert!(said().consequence.contains("another socket"), "{}", said().consequence);
    }
}
