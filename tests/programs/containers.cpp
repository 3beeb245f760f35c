// Containers over arenas that end one before the other: include/terrace.hpp.
#include "cold.h"
#include "terrace.hpp"
#include <list>
#include <string>
#include <utility>
#include <vector>

template <class T> using in = terrace::allocator<T>;
using list = std::list<int, in<int>>;

int main() {
    terrace::arena kept;
    list second{in<int>(kept)};
    std::vector<int, in<int>> hot{in<int>(TERRACE_HOT)};
    std::pmr::list<int> pooled;
    {
        terrace::arena ends;
        list first{in<int>(ends)};
        for (int n = 0; n < 10000; n++)
            first.push_back(n), second.push_back(-n), hot.push_back(n);
        // Each keeps its arena: so what is in them moves one by one.
        second = std::move(first);
        std::vector<int, in<int>> cold(hot.begin(), hot.end(), in<int>(TERRACE_COLD));
        std::swap(hot, cold);
        MUST(cold.size() == 10000 && cold[9999] == 9999);
        terrace::memory_resource there(ends), here(kept), anywhere(TERRACE_COLD);
        MUST(terrace_arena_of == nullptr || (!(there == here) && !(here == anywhere) && there == terrace::memory_resource(ends)));
        void *small = there.allocate(8);
        MUST(reinterpret_cast<uintptr_t>(small) % alignof(max_align_t) == 0);
        there.deallocate(small, 8);
        try {
            (void)here.allocate(SIZE_MAX - 8, 64);
            MUST(!"so much was allocated");
        } catch (const std::bad_alloc &) {
        }
    }
    // What is allocated now may lie where the other arena was.
    terrace::arena next;
    list third{in<int>(next)};
    for (int n = 0; n < 10000; n++)
        third.push_back(7);
    int expected = 0;
    for (int n : second)
        MUST(n == expected++);
    MUST(expected == 10000 && hot[77] == 77);
    return 0;
}
