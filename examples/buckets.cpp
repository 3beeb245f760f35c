// The table of buckets.c with the containers of C++17: each bucket is a list in an arena of its own,
// and its strings are, too.
//
//     c++ -std=c++17 -O2 buckets.cpp $(pkg-config --cflags --libs terrace) -o buckets && ./buckets
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <terrace.hpp>
#include <vector>

using string = std::basic_string<char, std::char_traits<char>, terrace::allocator<char>>;

struct entry {
    string key, value;
};

struct bucket {
    terrace::arena arena;
    // After the arena, so that it ends before it.
    std::list<entry, terrace::allocator<entry>> entries{arena};

    bucket() = default;
    bucket(const bucket &) = delete;
};

// Resident memory of this process, MiB; 0 where /proc is not mounted.
static long resident_mib() {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);)
        if (line.rfind("VmRSS:", 0) == 0)
            return std::stol(line.substr(6)) / 1024;
    return 0;
}

int main(int argc, char **argv) {
    constexpr int buckets = 1 << 16, keys = 160000;
    const int seconds = argc > 1 ? std::atoi(argv[1]) : 5;
    std::vector<std::unique_ptr<bucket>> table(buckets);
    auto bucket_of = [&](std::string_view key) -> bucket & {
        auto &found = table[std::hash<std::string_view>()(key) % buckets];
        if (!found)
            found = std::make_unique<bucket>();
        return *found;
    };
    auto key_of = [](int n) { return "the key of user number " + std::to_string(n); };
    auto value_of = [](int n) { return "the value of user number " + std::to_string(n); };

    for (int n = 0; n < keys; n++) {
        bucket &in = bucket_of(key_of(n));
        in.entries.push_front({string(key_of(n), in.arena), string(value_of(n), in.arena)});
    }
    // A memory resource, for std::pmr.
    terrace::memory_resource cold(TERRACE_COLD);
    std::pmr::vector<std::pmr::string> log(&cold);
    for (int n = 0; n < 1000000; n++)
        log.emplace_back("a line of a log that is seldom read");

    auto found_of = [&](int count) {
        int found = 0;
        for (int n = 0; n < count; n++)
            for (const entry &entry : bucket_of(key_of(n)).entries)
                found += std::string_view(entry.key) == key_of(n) &&
                         std::string_view(entry.value) == value_of(n);
        return found;
    };
    std::printf("%ld MiB are resident once it is filled\n", resident_mib());
    std::fflush(stdout);
    using clock = std::chrono::steady_clock;
    for (auto end = clock::now() + std::chrono::seconds(seconds); clock::now() < end;)
        if (found_of(keys / 10) != keys / 10)
            return 1;
    std::printf("%ld MiB are after %d s in which a tenth was read\n", resident_mib(), seconds);
    int found = found_of(keys);

    std::size_t used = 0, objects = 0, pages = 0;
    for (const auto &bucket : table) {
        terrace_arena_figures figures;
        if (!bucket || terrace_arena_query(bucket->arena.id(), &figures) != 0)
            continue;
        used++;
        objects += figures.objects;
        pages += figures.pages;
    }
    std::printf("%d of %d keys found; %.1f objects of a bucket lie on %.2f pages\n", found, keys, double(objects) / used, double(pages) / used);
    return found != keys;
}
