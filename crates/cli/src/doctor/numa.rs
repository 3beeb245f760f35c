//! NUMA nodes. Nodes without a CPU (CXL, persistent memory) could become a tier; their sizes are left out, because they lag
//! behind on machines whose memory grows.

use super::{Row, read};
use std::fs;
use std::path::Path;

/// One row.
pub fn rows() -> Vec<Row> {
    vec![judge(Path::new("/sys/devices/system/node"))]
}

fn judge(directory: &Path) -> Row {
    let name = "NUMA nodes";
    let mut nodes: Vec<u32> = fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.strip_prefix("node")?.parse().ok())
        .collect();
    nodes.sort_unstable();
    if nodes.is_empty() {
        return Row::ok(name, "not shown by this kernel", "all memory is treated as one node");
    }
    let without_cpu = |node: &&u32| read(directory.join(format!("node{node}/cpulist"))).is_ok_and(|list| list.is_empty());
    let slow: Vec<String> = nodes.iter().filter(without_cpu).map(ToString::to_string).collect();
    let plural = if nodes.len() == 1 { "" } else { "s" };
    if slow.is_empty() {
        return Row::ok(name, format!("{} node{plural}, with CPUs", nodes.len()), "no slower memory to use as a tier");
    }
    let slow = slow.join(", ");
    Row::ok(
        name,
        format!("{} node{plural}; without a CPU: {slow}", nodes.len()),
        format!("candidate for a tier of slower memory: node {slow}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_without_a_cpu_is_named() {
        let scratch = tempfile::tempdir().unwrap();
        assert_eq!(judge(scratch.path()).found, "not shown by this kernel");
        for (node, cpus) in [("node0", "0-3\n"), ("node2", "\n")] {
            fs::create_dir(scratch.path().join(node)).unwrap();
            fs::write(scratch.path().join(node).join("cpulist"), cpus).unwrap();
        }
        fs::write(scratch.path().join("online"), "0,2\n").unwrap();
        assert_eq!(judge(scratch.path()).found, "2 nodes; without a CPU: 2");
    }
}
