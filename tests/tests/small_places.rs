//! No lack of room, no limit and no early loss of rights ends a program under Terrace. Nor does any
//! keep pages in DRAM where they need not stay.

use std::path::PathBuf;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;
use terrace_testkit::group;
use terrace_testkit::process::is_root;
use terrace_tests::{Finished, Program, Terrace, compiled, skip};

/// `CANNOT_CHECK` of `cold.h`.
const CANNOT_CHECK: i32 = 77;
const TIME_LIMIT: Duration = Duration::from_secs(100);

static SMALL_PLACES: LazyLock<PathBuf> = LazyLock::new(|| compiled("small_places.c", &[]));

/// Runs a case under Terrace, in a place that a shell's commands make small. The case must succeed.
/// `None` where it cannot be checked.
#[track_caller]
fn hold(arguments: &[&str], place: &str) -> Option<Finished> {
    let launcher = ["unshare", "--mount", "sh", "-c", &format!("{place} exec \"$@\""), "sh"]
        .map(str::to_owned);
    let program = Program::new(&*SMALL_PLACES)
        .args(arguments)
        .under(Terrace::within("1G"))
        .time_limit(TIME_LIMIT);
    run(if place.is_empty() { program } else { program.launched_by(launcher) })
}

#[track_caller]
fn run(program: Program) -> Option<Finished> {
    if !is_root() {
        skip("small places", "only root can make them");
        return None;
    }
    let finished = program.run();
    if finished.status.code() == Some(CANNOT_CHECK) {
        skip(
            "this case",
            finished
                .stderr
                .lines()
                .find_map(|line| line.strip_prefix("cannot check: "))
                .unwrap_or("no reason given"),
        );
        return None;
    }
    assert!(finished.status.success(), "{}", finished.account("failed"));
    Some(finished)
}

/// Shell commands that make a file system of this size for run directories, with no other place for
/// them.
fn only_place(size: &str) -> String {
    format!(
        "mount -t tmpfs -o size={size} none /dev/shm; export TMPDIR=/dev/shm; unset XDG_RUNTIME_DIR;"
    )
}

#[test]
fn nothing_is_free_for_statistics() {
    let full = only_place("16k") + "head -c 16384 /dev/zero > /dev/shm/full;";
    for case in ["pages_leave", "children_too"] {
        let Some(finished) = hold(&[case], &full) else { return };
        assert_eq!(
            finished.stderr.matches("no place in /dev/shm/").count(),
            1,
            "{}",
            finished.account("says nothing, or too much")
        );
        assert!(
            finished.stderr.contains("there was no place for it"),
            "{}",
            finished.account("has an untrue report")
        );
    }
}

#[test]
fn a_full_place_is_not_taken_where_there_is_another() {
    let full = "mount -t tmpfs -o size=16k none /dev/shm; unset XDG_RUNTIME_DIR; head -c 16384 /dev/zero > /dev/shm/full;";
    if let Some(finished) = hold(&["children_too"], full) {
        finished.report().expect_managed();
    }
}

#[test]
fn the_last_blocks_go_while_processes_come() {
    let script = "head -c 2M /dev/zero > /dev/shm/full; n=0; for i in 1 2 3 4 5 6 7 8; do /bin/true || n=$((n+1)); done; echo \"$n failed\"";
    let launcher = ["unshare", "--mount", "sh", "-c", &(only_place("1m") + "exec \"$@\""), "sh"]
        .map(str::to_owned);
    let program =
        Program::new("sh").args(["-c", script]).under(Terrace::within("1G")).launched_by(launcher);
    let Some(finished) = run(program) else { return };
    assert_eq!(
        String::from_utf8_lossy(&finished.stdout),
        "0 failed\n",
        "{}",
        finished.account("ended others")
    );
    assert_eq!(
        finished.stderr.matches("no place in /dev/shm/").count(),
        1,
        "{}",
        finished.account("says nothing, or too much")
    );
}

#[test]
fn pages_of_ended_processes_make_room() {
    let script = "n=0; i=0; while [ $i -lt 400 ]; do /bin/true || n=$((n+1)); i=$((i+1)); done; echo \"$n failed\"
        until [ $(ls \"$TERRACE_RUN_DIR\" | wc -l) -lt 50 ]; do sleep 0.1; done; echo few";
    let launcher = ["unshare", "--mount", "sh", "-c", &(only_place("1m") + "exec \"$@\""), "sh"]
        .map(str::to_owned);
    let program = Program::new("sh")
        .args(["-c", script])
        .under(Terrace::default())
        .launched_by(launcher)
        .time_limit(TIME_LIMIT);
    let Some(finished) = run(program) else { return };
    assert_eq!(
        String::from_utf8_lossy(&finished.stdout),
        "0 failed\nfew\n",
        "{}",
        finished.account("ended others")
    );
    let processes = finished.report().at("/processes").as_array().map_or(0, Vec::len);
    assert!(
        processes >= 400,
        "figures of {processes} processes: {}",
        finished.account("lost some")
    );
}

#[test]
fn pages_are_truncated() {
    hold(&["pages_are_truncated"], "");
}

#[test]
fn pages_are_removed() {
    hold(&["pages_are_removed"], "");
}

#[test]
fn the_size_of_files_is_limited_later() {
    hold(&["no_files_may_grow"], "");
}

#[test]
fn the_size_of_files_is_limited() {
    // The page fits, what is behind it does not.
    if let Some(finished) = hold(&["children_too"], "ulimit -f 100;") {
        finished.report().expect_managed();
    }
    hold(&["children_too"], "ulimit -f 0;");
}

#[test]
fn nobody_reads_what_is_said() {
    let full = only_place("16k") + "head -c 16384 /dev/zero > /dev/shm/full; exec 2> /dev/full;";
    hold(&["pages_leave"], &full);
    let pipe = only_place("16k")
        + "head -c 16384 /dev/zero > /dev/shm/full; mkfifo /run/nobody; exec 3<> /run/nobody 2> /run/nobody 3<&-; ";
    let private_run = "mount -t tmpfs none /run; ".to_owned() + &pipe;
    hold(&["pages_leave"], &private_run);
}

#[test]
fn no_descriptors_are_left() {
    hold(&["no_descriptors_are_left"], "");
}

/// A control group that limits tasks, removed in the end.
struct TaskGroup(PathBuf);

impl TaskGroup {
    fn new() -> Option<TaskGroup> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let hierarchy = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"];
        // Tests run beside each other.
        let name = format!("terrace-tests-{}-{}", std::process::id(), MADE.fetch_add(1, Relaxed));
        let path = |parent: &str| PathBuf::from(format!("{parent}/{name}"));
        let makes = |group: PathBuf| {
            let made = std::fs::create_dir(&group).is_ok().then(|| TaskGroup(group))?;
            made.0.join("pids.max").exists().then_some(made)
        };
        hierarchy.map(path).into_iter().find_map(makes)
    }
}

impl Drop for TaskGroup {
    fn drop(&mut self) {
        group::remove(&self.0);
    }
}

#[test]
fn tasks_are_few() {
    let Some(group) = TaskGroup::new() else {
        return skip("a limit on tasks", "no control group for them (pids) can be made");
    };
    let place = format!("export TASK_GROUP={};", group.0.display());
    let Some(finished) = hold(&["tasks_are_few"], &place) else { return };
    assert_eq!(
        finished.stderr.matches("terrace: frozen, nothing more is evicted: the limit").count(),
        1,
        "{}",
        finished.account("says nothing, or too much")
    );
}

/// No companion is made that would leave the program too few of 16 tasks.
#[test]
fn a_small_limit_on_tasks_is_left_to_the_program() {
    let shell = "p() { \"$0\" children_at_a_time & sleep 0.5; }; p; wait; \
                 \"$0\" pages_leave & \"$0\" pages_leave & /bin/true && wait";
    let program = SMALL_PLACES.to_string_lossy().into_owned();
    for (case, of) in [("program", vec![]), ("shell", vec!["sh", "-c", shell, &program])] {
        let Some(group) = TaskGroup::new() else {
            return skip("a limit on tasks", "no control group for them (pids) can be made");
        };
        let place = format!(
            "echo 16 >{0}/pids.max; echo $$ >{0}/cgroup.procs; exec \"$@\"",
            group.0.display()
        );
        let program = match &of[..] {
            [] => Program::new(&program).args(["children_at_a_time"]),
            [name, arguments @ ..] => Program::new(name).args(arguments),
        };
        let program = program
            .under(Terrace::within("1G"))
            .launched_by(["sh", "-c", &place, "sh"].map(str::to_owned))
            .time_limit(TIME_LIMIT);
        let Some(finished) = run(program) else { return };
        let line = "terrace: the limit on tasks (pids.max, ulimit -u) is 16, which leaves";
        assert_eq!(
            finished.stderr.matches(line).count(),
            1,
            "{case}: {}",
            finished.account("says nothing, or too much")
        );
    }
}

/// One test for each way of giving up rights before anything else.
macro_rules! gives_up {
    ($($name:ident: $way:literal)*) => {$(
        #[test]
        fn $name() {
            if let Some(finished) = hold(&["pages_leave", $way], "") {
                // All processes count: the figures of the report may be those of a child.
                finished.report().expect_moves_in("small_places", 2_000, 2_000);
            }
        }
    )*};
}

gives_up! {
    user_and_groups_are_given_up: "setuid"
    all_user_ids_are_given_up: "setresuid"
    the_effective_user_is_given_up: "seteuid"
    the_user_is_given_up_by_number: "number"
    capabilities_are_given_up: "capset"
    the_root_directory_is_given_up: "chroot"
    a_user_namespace_is_entered: "unshare"
    other_namespaces_are_entered: "namespaces"
    dumps_are_given_up: "dumps"
}
