//! Statistics in memcached's words.

use std::sync::atomic::Ordering::Relaxed;

use super::Server;
use crate::stats::COUNT_NAMES;

const PAGE: usize = 1 << 20;

/// Statistics that clients look for and that have no meaning here.
/// memcached's tests count the names, so that there are 83 in all.
const ZEROS: &[&str] = &[
    "response_obj_oom",
    "response_obj_count",
    "response_obj_bytes",
    "read_buf_count",
    "read_buf_bytes_free",
    "read_buf_oom",
    "reserved_fds",
    "listen_disabled_num",
    "time_in_listen_disabled_us",
    "hash_is_expanding",
    "slab_reassign_rescues",
    "slab_reassign_chunk_rescues",
    "slab_reassign_evictions_nomem",
    "slab_reassign_inline_reclaim",
    "slab_reassign_busy_items",
    "slab_reassign_busy_deletes",
    "slab_reassign_running",
    "slabs_moved",
    "lru_crawler_running",
    "lru_crawler_starts",
    "malloc_fails",
    "log_worker_dropped",
    "log_worker_written",
    "log_watcher_skipped",
    "log_watcher_sent",
    "log_watchers",
    "slab_global_page_pool",
    "expired_unfetched",
    "evicted_active",
    "crawler_reclaimed",
    "crawler_items_checked",
    "lrutail_reflocked",
];

/// A text of `STAT` lines.
struct Lines<'a>(&'a mut Vec<u8>);

impl Lines<'_> {
    fn add(&mut self, name: &str, value: impl std::fmt::Display) {
        self.0.extend(format!("STAT {name} {value}\r\n").bytes());
    }
}

impl Server {
    /// Answers `stats` with its words.
    pub(super) fn report(&self, words: &[&[u8]], out: &mut Vec<u8>) {
        match words {
            [] => self.report_general(&mut Lines(out)),
            [b"settings"] => self.report_settings(&mut Lines(out)),
            [b"items"] => self.report_items(&mut Lines(out)),
            [b"slabs"] => self.report_slabs(&mut Lines(out)),
            [b"sizes", ..] => Lines(out).add("sizes_status", "disabled"),
            [b"conns"] => {}
            [b"terrace"] => {
                let figures = self.store.config.tiering.map(|tiering| tiering.figures());
                for (name, value) in figures.unwrap_or_else(|| vec![("active".to_owned(), 0)]) {
                    Lines(out).add(&name, value);
                }
                for (name, value) in self.store.consolidation() {
                    Lines(out).add(name, value);
                }
            }
            [b"reset"] => {
                self.stats.reset();
                if let Some(tls) = &self.tls {
                    tls.reset();
                }
                out.extend(b"RESET\r\n");
                return;
            }
            [b"detail", what @ ..] => {
                match what.first() {
                    Some(&b"on") => self.stats.detail.store(true, Relaxed),
                    Some(&b"off") => self.stats.detail.store(false, Relaxed),
                    Some(&b"dump") => {
                        self.dump_prefixes(out);
                        return;
                    }
                    _ => {
                        out.extend(b"CLIENT_ERROR usage: stats detail on|off|dump\r\n");
                        return;
                    }
                }
                out.extend(b"OK\r\n");
                return;
            }
            _ => {
                out.extend(b"ERROR\r\n");
                return;
            }
        }
        out.extend(b"END\r\n");
    }

    fn report_general(&self, lines: &mut Lines<'_>) {
        let settings = &self.settings;
        lines.add("pid", std::process::id());
        lines.add("uptime", self.clock.uptime());
        lines.add("time", self.clock.now());
        lines.add("version", crate::settings::VERSION);
        lines.add("pointer_size", usize::BITS);
        let (user, system) = cpu_seconds();
        lines.add("rusage_user", format_args!("{user:.6}"));
        lines.add("rusage_system", format_args!("{system:.6}"));
        lines.add("max_connections", settings.connections_max);
        lines.add("curr_connections", self.stats.connections.load(Relaxed));
        lines.add("accepting_conns", 1);
        lines.add("limit_maxbytes", self.store.memory_limit());
        lines.add("threads", settings.threads);
        let (bytes, power) = self.store.index_size();
        lines.add("hash_power_level", power);
        lines.add("hash_bytes", bytes);
        let sum =
            |of: fn(&crate::stats::Class) -> u64| self.stats.classes.iter().map(of).sum::<u64>();
        lines.add("bytes", sum(|class| class.bytes.load(Relaxed)));
        lines.add("curr_items", sum(|class| class.items.load(Relaxed)));
        lines.add("memory_used_bytes", self.store.used_bytes());
        for (name, value) in COUNT_NAMES.iter().zip(self.stats.all()) {
            // As with memcached, which has a test that counts lines.
            if *name != "idle_kicks" || settings.idle_timeout > 0 {
                lines.add(name, value);
            }
        }
        lines.add("read_buf_bytes", self.store.held_bytes());
        for name in ZEROS {
            lines.add(name, 0);
        }
        for (name, value) in self.tls.iter().flat_map(|tls| tls.figures()) {
            lines.add(name, value);
        }
    }

    fn report_settings(&self, lines: &mut Lines<'_>) {
        let settings = &self.settings;
        let yes = |on: bool| if on { "yes" } else { "no" };
        lines.add("maxbytes", self.store.memory_limit());
        lines.add("maxconns", settings.connections_max);
        lines.add("tcpport", settings.port);
        lines.add("udpport", 0);
        lines.add("inter", settings.listen.first().map_or("NULL", String::as_str));
        lines.add("verbosity", self.verbosity.load(Relaxed));
        lines.add("oldest", 0);
        lines.add("evictions", if settings.evictions { "on" } else { "off" });
        let path = settings.socket.as_ref().map(|path| path.display().to_string());
        lines.add("domain_socket", path.as_deref().unwrap_or("NULL"));
        lines.add("umask", format_args!("{:o}", settings.socket_mask));
        lines.add("shutdown_command", yes(settings.shutdown));
        lines.add("num_threads", settings.threads);
        lines.add("stat_key_prefix", char::from(settings.delimiter));
        lines.add("detail_enabled", yes(self.stats.detail.load(Relaxed)));
        lines.add("reqs_per_event", settings.requests_per_event);
        lines.add("cas_enabled", yes(settings.cas));
        lines.add("tcp_backlog", settings.backlog);
        lines.add("binding_protocol", "ascii");
        lines.add("auth_enabled_sasl", "no");
        lines.add("auth_enabled_ascii", yes(self.accounts.is_some()));
        lines.add("item_size_max", settings.item_size_max);
        lines.add("maxconns_fast", "yes");
        lines.add("idle_timeout", settings.idle_timeout);
        lines.add("flush_enabled", yes(settings.flush));
        lines.add("dump_enabled", yes(settings.dump));
        lines.add("ssl_enabled", yes(settings.tls.enabled));
        for (name, value) in settings.tls.lines() {
            lines.add(name, value);
        }
    }

    /// The classes that have or had items, with their numbers.
    pub(super) fn classes(&self) -> impl Iterator<Item = (usize, &crate::stats::Class)> {
        let classes = self.stats.classes.iter().enumerate();
        classes.filter(|(_, class)| class.stored.load(Relaxed) > 0)
    }

    fn report_items(&self, lines: &mut Lines<'_>) {
        for (number, class) in self.classes() {
            let mut add = |name: &str, value: u64| {
                lines.add(&format!("items:{number}:{name}"), value);
            };
            add("number", class.items.load(Relaxed));
            add("mem_requested", class.bytes.load(Relaxed));
            add("evicted_nonzero", class.evicted_nonzero.load(Relaxed));
            add("evicted", class.evicted.load(Relaxed));
            add("reclaimed", class.reclaimed.load(Relaxed));
            for name in ["age", "evicted_time", "outofmemory", "tailrepairs"] {
                add(name, 0);
            }
        }
    }

    fn report_slabs(&self, lines: &mut Lines<'_>) {
        let mut active = 0;
        for (number, class) in self.classes() {
            active += 1;
            let chunk = self.stats.chunk_size(number);
            let items = class.items.load(Relaxed);
            let mut add = |name: &str, value: u64| lines.add(&format!("{number}:{name}"), value);
            add("chunk_size", chunk as u64);
            add("chunks_per_page", (PAGE / chunk) as u64);
            add("total_pages", (items as usize * chunk).div_ceil(PAGE) as u64);
            add("total_chunks", items);
            add("used_chunks", items);
            add("free_chunks", 0);
            add("mem_requested", class.bytes.load(Relaxed));
            add("cmd_set", class.stored.load(Relaxed));
        }
        lines.add("active_slabs", active);
        let used = self.store.used_bytes();
        let given = self.settings.used_from_start;
        lines.add("total_malloced", given + (used - given).next_multiple_of(PAGE));
    }

    fn dump_prefixes(&self, out: &mut Vec<u8>) {
        for (name, prefix) in self.stats.prefixes() {
            out.extend(b"PREFIX ");
            out.extend(name);
            let counts = format!(
                " get {} hit {} set {} del {}\r\n",
                prefix.gets, prefix.hits, prefix.sets, prefix.deletes
            );
            out.extend(counts.bytes());
        }
        out.extend(b"END\r\n");
    }
}

/// The CPU time of this process, outside of the kernel and in it, s.
fn cpu_seconds() -> (f64, f64) {
    let (outside, inside) = terrace_os::own_cpu_times();
    (outside.as_secs_f64(), inside.as_secs_f64())
}
