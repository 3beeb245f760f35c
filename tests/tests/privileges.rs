//! Terrace does its work with the least rights that docs/privileges.md names, and with less it says
//! so and leaves the program alone.
//!
//! Rights are taken away by `programs/confined.c`, for one command only. The one thing that
//! concerns the whole machine is the sysctl.

use serde_json::Value;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use terrace_testkit::process::is_root;
use terrace_testkit::public::Public;
use terrace_tests::{
    Finished, Program, Terrace, compiled, machine, skip, terrace_command, terrace_library,
};

const ROOT: u32 = 0;
const NOBODY: u32 = 65534;
/// `CANNOT_CHECK` of `cold.h`.
const CANNOT_CHECK: i32 = 77;
const SYSCTL: &str = "/proc/sys/vm/unprivileged_userfaultfd";

static CONFINED: LazyLock<PathBuf> = LazyLock::new(|| compiled("confined.c", &[]));
static USES_WHAT_IT_MAY: LazyLock<PathBuf> = LazyLock::new(|| compiled("uses_what_it_may.c", &[]));
static SKEWED: LazyLock<PathBuf> = LazyLock::new(|| compiled("skewed.c", &[]));

/// The sysctl at a value; back at what it was when dropped, also by a test that fails.
struct Sysctl {
    before: String,
}

impl Sysctl {
    fn set(value: &str) -> std::io::Result<Sysctl> {
        let before = fs::read_to_string(SYSCTL)?;
        fs::write(SYSCTL, value)?;
        Ok(Sysctl { before })
    }
}

impl Drop for Sysctl {
    fn drop(&mut self) {
        if let Err(error) = fs::write(SYSCTL, &self.before) {
            eprintln!("{SYSCTL} could not be set back to {}: {error}", self.before.trim());
        }
    }
}

/// The user that runs a program, and the restrictions on it.
struct Rights {
    sysctl: &'static str,
    user: u32,
    /// Options for `confined.c` that say which rights are taken away.
    taken: &'static str,
    /// Everything that is started.
    public: Public,
}

impl Rights {
    fn of(user: u32, sysctl: &'static str, taken: &'static str) -> Rights {
        let public = Public::with(&[&terrace_command(), &terrace_library()]);
        Rights { sysctl, user, taken, public }
    }

    /// Runs a program with these rights, to its end. `None`, with a remark, where they cannot be
    /// arranged.
    #[track_caller]
    fn run(
        &self,
        program: &Path,
        arguments: &[&str],
        terrace: Option<Terrace>,
    ) -> Option<Finished> {
        if !is_root() {
            skip("rights", "only root can take them away from somebody");
            return None;
        }
        let _machine = machine();
        let _sysctl = match Sysctl::set(self.sysctl) {
            Ok(sysctl) => sysctl,
            Err(error) => {
                skip("rights", &format!("{SYSCTL} cannot be set: {error}"));
                return None;
            }
        };
        let mut launcher = vec![CONFINED.clone().into_os_string()];
        launcher.extend(self.taken.split_whitespace().map(OsString::from));
        launcher.extend(["--user".into(), self.user.to_string().into(), "--".into()]);
        let finished = Program::new(self.public.publish(program))
            .args(arguments)
            .under(terrace)
            .launched_by(launcher)
            .for_user(self.user, self.public.path())
            .current_dir(Path::new("/"))
            .run();
        if finished.status.code() == Some(CANNOT_CHECK) {
            skip("rights", finished.stderr.trim());
            return None;
        }
        Some(finished)
    }

    /// Pages leave and come back, for the program, for system calls on its behalf, and in forked
    /// children; the doctor says why.
    #[track_caller]
    fn suffice(&self, doctors_words: &str) {
        let Some(finished) = self.run(&USES_WHAT_IT_MAY, &[], Some(Terrace::within("4G"))) else {
            return;
        };
        assert!(finished.status.success(), "{}", finished.account("failed"));
        // The program has seen for itself that its pages were out.
        finished.report().expect_managed();
        let Some((status, found)) = self.doctor() else { return };
        assert_eq!(status, Some(0), "{found}");
        assert!(found.contains(doctors_words), "{found}");
    }

    /// The program runs as without Terrace, which says what is missing in one line; --strict
    /// refuses; the doctor agrees.
    #[track_caller]
    fn do_not_suffice(&self, cause: &str, doctors_words: &str) {
        let Some(finished) = self.run(&SKEWED, &["64", "0.1"], Some(Terrace::within("64M"))) else {
            return;
        };
        assert!(finished.status.success(), "{}", finished.account("failed"));
        let report = finished.report();
        assert_eq!(
            (report.at("/managed"), report.at("/state")),
            (&Value::from(false), &Value::from("unmanaged")),
            "{report}"
        );
        assert_eq!(report.demoted_pages(), 0, "{report}");
        let note = report.at("/note").as_str().unwrap_or_default();
        assert!(note.starts_with(cause), "{report}");
        // That line from the library, once, and then the report.
        let said: Vec<&str> = finished.stderr.lines().collect();
        assert!(
            said.len() == 2 && said[0] == format!("terrace: {note}"),
            "{}",
            finished.account("said something else")
        );
        assert!(
            note.contains("stays in DRAM") && said[1].contains("not managed"),
            "{}",
            finished.account("said something else")
        );

        let Some(refused) =
            self.run(&SKEWED, &["64", "0.1"], Some(Terrace::within("64M").and("--strict")))
        else {
            return;
        };
        assert_eq!(refused.status.code(), Some(125), "{}", refused.account("was not refused"));
        assert!(
            refused.stdout.is_empty() && refused.stderr.matches(cause).count() == 1,
            "{}",
            refused.account("was not refused")
        );

        let Some((status, found)) = self.doctor() else { return };
        assert_eq!(status, Some(1), "{found}");
        assert!(found.contains(doctors_words), "{found}");
    }

    /// The doctor's exit status and what it found of userfaultfd.
    #[track_caller]
    fn doctor(&self) -> Option<(Option<i32>, String)> {
        let finished = self.run(&terrace_command(), &["doctor", "--json"], None)?;
        let answer: Value = serde_json::from_slice(&finished.stdout)
            .unwrap_or_else(|e| panic!("{}", finished.account(&e.to_string())));
        let row = answer["rows"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|row| row["name"] == "userfaultfd");
        Some((
            finished.status.code(),
            row.unwrap_or_else(|| panic!("no row: {answer}"))["found"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
        ))
    }
}

const NO_PERMISSION: &str = "no permission for userfaultfd";
const USER_MODE_ONLY: &str = "opens for user-mode faults only";

#[test]
fn root_needs_nothing_else() {
    Rights::of(ROOT, "0", "").suffice("opens by the system call; /dev/userfaultfd too");
    Rights::of(ROOT, "0", "--device none")
        .suffice("opens by the system call; /dev/userfaultfd not");
}

#[test]
fn the_sysctl_is_enough_for_a_plain_user() {
    Rights::of(NOBODY, "1", "--device 0600")
        .suffice("opens by the system call; /dev/userfaultfd not");
}

#[test]
fn access_to_the_device_is_enough_for_a_plain_user() {
    Rights::of(NOBODY, "0", "--device 0660").suffice("opens by /dev/userfaultfd");
}

#[test]
fn a_plain_user_with_nothing_runs_unmanaged() {
    Rights::of(NOBODY, "0", "--device 0600").do_not_suffice(NO_PERMISSION, USER_MODE_ONLY);
    // Reading the device is not enough, and not more than nothing.
    Rights::of(NOBODY, "0", "--device 0640").do_not_suffice(NO_PERMISSION, USER_MODE_ONLY);
}

#[test]
fn a_filter_that_denies_userfaultfd_leaves_the_device() {
    Rights::of(NOBODY, "1", "--device 0660 --deny userfaultfd")
        .suffice("opens by /dev/userfaultfd");
}

#[test]
fn a_filter_that_denies_the_device_leaves_the_system_call() {
    Rights::of(NOBODY, "1", "--device 0660 --deny device")
        .suffice("opens by the system call; /dev/userfaultfd not");
    Rights::of(NOBODY, "0", "--device 0660 --deny device")
        .do_not_suffice(NO_PERMISSION, USER_MODE_ONLY);
}

/// Docker's own profile, and the device handed in. Of what it denies, all that Terrace could use is
/// here.
#[test]
fn the_device_is_enough_in_a_container() {
    const DENIED: &str = "--device 0660 --deny userfaultfd --deny unshare --deny pidfd_getfd";
    Rights::of(ROOT, "0", DENIED).suffice("opens by /dev/userfaultfd");
    Rights::of(NOBODY, "0", DENIED).suffice("opens by /dev/userfaultfd");
}

/// A seccomp filter and no device, as in a container.
#[test]
fn a_filter_that_leaves_no_way_is_named() {
    for user in [ROOT, NOBODY] {
        Rights::of(user, "1", "--device none --deny userfaultfd")
            .do_not_suffice(NO_PERMISSION, "does not open: Operation not permitted");
        Rights::of(user, "1", "--device none --hide userfaultfd").do_not_suffice(
            "no userfaultfd in this kernel, or a seccomp filter",
            "does not open: Function not implemented",
        );
    }
}

/// A seccomp filter that would end the program for what Terrace does in it.
#[test]
fn a_filter_that_kills_is_found_out_first() {
    for taken in ["--kill userfaultfd", "--kill device", "--kill process_vm_readv"] {
        Rights::of(ROOT, "0", taken)
            .do_not_suffice("a seccomp filter ends processes", "a seccomp filter ends processes");
    }
}

/// A seccomp filter that denies process_vm_readv. Without that call, a fork cannot bring back what
/// its child will touch first.
#[test]
fn a_filter_that_denies_reading_through_the_kernel_is_named() {
    Rights::of(ROOT, "0", "--deny process_vm_readv")
        .do_not_suffice("process_vm_readv is refused", "process_vm_readv is refused");
}

/// What idle CPUs are to do is for root to say; without that it costs a line, and with --strict
/// nothing is started.
#[test]
fn a_latency_is_requested_by_who_may_while_pages_come_back() {
    let asking = |rights: &Rights, terrace: Terrace| {
        rights.run(&SKEWED, &["64", "2"], Some(terrace.and("--wake-latency").and("0")))
    };
    let driver =
        fs::read_to_string("/sys/devices/system/cpu/cpuidle/current_driver").unwrap_or_default();
    if !Path::new("/dev/cpu_dma_latency").exists() || matches!(driver.trim(), "" | "none") {
        // Of the processor, and nothing that could be installed: so this is no failure where all
        // must be checked, either.
        println!(
            "skipped: a latency: no /dev/cpu_dma_latency, or no cpuidle driver that goes by it"
        );
        return;
    }
    if let Some(finished) = asking(&Rights::of(ROOT, "0", ""), Terrace::stressed()) {
        assert!(finished.status.success(), "{}", finished.account("failed"));
        let held_s = finished.report().number("/wakeful_s");
        assert!(held_s > 0.0, "{}", finished.report());
    }
    if let Some(finished) = asking(&Rights::of(ROOT, "0", ""), Terrace::within("4G")) {
        assert_eq!(
            finished.report().number("/wakeful_s"),
            0.0,
            "{}",
            finished.account("requested what nothing called for")
        );
    }
    let plain = Rights::of(NOBODY, "1", "");
    const WHY: &str =
        "--wake-latency has no effect: /dev/cpu_dma_latency cannot be opened (Permission denied";
    if let Some(finished) = asking(&plain, Terrace::stressed()) {
        assert!(
            finished.status.success() && finished.stderr.contains(WHY),
            "{}",
            finished.account("said something else")
        );
        finished.report().expect_managed();
        assert_eq!(finished.report().at("/wakeful_s"), &Value::Null, "{}", finished.report());
    }
    if let Some(refused) = asking(&plain, Terrace::stressed().and("--strict")) {
        assert_eq!(refused.status.code(), Some(125), "{}", refused.account("was not refused"));
        assert!(
            refused.stdout.is_empty() && refused.stderr.contains(WHY),
            "{}",
            refused.account("was not refused")
        );
    }
}
