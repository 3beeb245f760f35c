// What C++ programs expect of operator new and delete. Usage: see cold.h.
#include "cold.h"
#include <map>
#include <memory>
#include <memory_resource>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

static volatile size_t huge = SIZE_MAX / 2;
static void *volatile sink; // what is not used may be left out

static bool aligned(const void *p, size_t alignment) { return (reinterpret_cast<uintptr_t>(p) & (alignment - 1)) == 0; }

// Calls, not expressions: the compiler may leave out a pair of expressions.
static void every_operator() {
    for (size_t size = 0; size < 3000000; size = size * 3 + 1) {
        void *plain[] = {::operator new(size), ::operator new[](size), ::operator new(size, std::nothrow), ::operator new[](size, std::nothrow)};
        for (void *p : plain) {
            MUST(p && aligned(p, size < 16 ? 8 : 16));
            memset(p, 1, size);
        }
        ::operator delete(plain[0]);
        ::operator delete[](plain[1], size);
        ::operator delete(plain[2], std::nothrow);
        ::operator delete[](plain[3], std::nothrow);
        ::operator delete(::operator new(size), size);
        ::operator delete[](::operator new[](size));
        for (size_t power = 8; power <= 2 * MIB; power *= 4) {
            auto alignment = std::align_val_t(power);
            void *over[] = {::operator new(size, alignment), ::operator new[](size, alignment), ::operator new(size, alignment, std::nothrow),
                            ::operator new[](size, alignment, std::nothrow)};
            for (void *p : over) {
                MUST(p && aligned(p, power));
                memset(p, 2, size);
            }
            ::operator delete(over[0], alignment);
            ::operator delete[](over[1], size, alignment);
            ::operator delete(over[2], alignment, std::nothrow);
            ::operator delete[](over[3], alignment, std::nothrow);
            ::operator delete(::operator new(size, alignment), size, alignment);
            ::operator delete[](::operator new[](size, alignment), alignment);
        }
    }
    ::operator delete(nullptr);
    ::operator delete[](nullptr);
}

static int handler_calls;

template <typename F> static bool throws_bad_alloc(F f) {
    try {
        f();
    } catch (const std::bad_alloc &e) {
        return e.what() != nullptr;
    }
    return false;
}

static void memory_runs_out() {
    auto alignment = std::align_val_t(64);
    MUST(throws_bad_alloc([] { sink = ::operator new(huge); }));
    MUST(throws_bad_alloc([] { sink = ::operator new[](huge); }));
    MUST(throws_bad_alloc([=] { sink = ::operator new(huge, alignment); }));
    MUST(throws_bad_alloc([=] { sink = ::operator new[](huge, alignment); }));
    MUST(::operator new(huge, std::nothrow) == nullptr);
    MUST(::operator new[](huge, std::nothrow) == nullptr);
    MUST(::operator new(huge, alignment, std::nothrow) == nullptr);
    MUST(::operator new[](huge, alignment, std::nothrow) == nullptr);
    MUST(throws_bad_alloc([] { std::vector<char> v(huge / 2); }));
    bool length = false;
    try {
        volatile long n = -1;
        delete[] new int[static_cast<size_t>(n)];
    } catch (const std::bad_array_new_length &) {
        length = true;
    }
    MUST(length);
    // The new-handler is asked as long as it returns.
    std::set_new_handler([] {
        if (++handler_calls % 3 == 0)
            throw std::bad_alloc();
    });
    MUST(throws_bad_alloc([] { sink = ::operator new(huge); }) && handler_calls == 3);
    MUST(throws_bad_alloc([=] { sink = ::operator new[](huge, alignment); }) && handler_calls == 6);
    MUST(::operator new(huge, std::nothrow) == nullptr && handler_calls == 9);
    // One that gives up its place.
    std::set_new_handler([] {
        handler_calls = 100;
        std::set_new_handler(nullptr);
    });
    MUST(throws_bad_alloc([] { sink = ::operator new(huge); }) && handler_calls == 100);
    MUST(std::get_new_handler() == nullptr);
    // Afterwards everything is as before.
    delete new std::string(1000, 'x');
}

struct alignas(256) Wide {
    char bytes[300];
};
struct Own {
    static int news;
    void *operator new(size_t size) {
        news++;
        return ::operator new(size);
    }
    void operator delete(void *p) {
        news--;
        ::operator delete(p);
    }
    std::string text = std::string(100, 'o');
};
int Own::news;
struct OnThread {
    std::vector<std::string> words;
    ~OnThread() {
        words.emplace_back(5000, 'z');
        MUST(words.front().size() == 100);
    }
};

static void containers_and_exceptions(uint64_t seed) {
    thread_local OnThread on_thread;
    on_thread.words.emplace_back(100, 'y');
    std::map<uint64_t, std::string> map;
    for (uint64_t n = 0; n < 5000; n++)
        map[mix(n + seed)] = std::string(mix(n) % 700, static_cast<char>('a' + n % 26));
    for (uint64_t n = 0; n < 5000; n += 2)
        map.erase(mix(n + seed));
    for (uint64_t n = 1; n < 5000; n += 2)
        MUST(map.at(mix(n + seed)) == std::string(mix(n) % 700, static_cast<char>('a' + n % 26)));
    for (int n = 0; n < 500; n++) {
        try {
            std::string text(3000, 't');
            throw std::runtime_error(text + std::to_string(n));
        } catch (const std::exception &e) {
            MUST(std::string(e.what()) == std::string(3000, 't') + std::to_string(n));
        }
        auto wide = std::make_unique<Wide[]>(5);
        MUST(aligned(wide.get(), 256));
        std::unique_ptr<Own> own(new Own);
        MUST(own->text.size() == 100);
        auto shared = std::make_shared<std::vector<int>>(1000, n);
        std::weak_ptr<std::vector<int>> weak = shared;
        shared.reset();
        MUST(weak.expired());
    }
    std::pmr::monotonic_buffer_resource buffer;
    std::pmr::vector<std::pmr::string> words(&buffer);
    for (int n = 0; n < 1000; n++)
        words.emplace_back("a word that is too long for its own place");
    MUST(words[999].size() == 41);
}

static void in_one_thread() { containers_and_exceptions(1); }

static void in_many_threads() {
    Own::news = 0;
    std::exception_ptr passed;
    for (int round = 0; round < 3; round++) {
        std::vector<std::thread> threads;
        for (uint64_t n = 0; n < 4; n++)
            threads.emplace_back([n] { containers_and_exceptions(n); });
        std::thread([&] { passed = std::make_exception_ptr(std::runtime_error(std::string(2000, 'p'))); }).join();
        for (auto &thread : threads)
            thread.join();
        try {
            std::rethrow_exception(passed);
        } catch (const std::runtime_error &e) {
            MUST(strlen(e.what()) == 2000);
        }
    }
}

// A vector grows while its contents are evicted.
static void evicted_containers_grow() {
    std::vector<uint64_t> words;
    for (size_t n = 0; n < 2000000; n++) {
        words.push_back(mix(n) >> 40);
        if (n % 300000 == 299999 && evicts()) {
            auto from = (reinterpret_cast<uintptr_t>(words.data()) + PAGE - 1) & ~static_cast<uintptr_t>(PAGE - 1);
            MUST(madvise(reinterpret_cast<void *>(from), (words.size() * 8 - PAGE) & ~static_cast<size_t>(PAGE - 1), MADV_PAGEOUT) == 0);
        }
    }
    for (size_t n = 0; n < words.size(); n++)
        MUST(words[n] == mix(n) >> 40);
}

int main(int count, char **words) {
    static const struct a_case cases[] = {
        CASE(every_operator), CASE(memory_runs_out), CASE(in_one_thread), CASE(in_many_threads), CASE(evicted_containers_grow),
    };
    return run_case(count, words, cases, COUNT(cases));
}
