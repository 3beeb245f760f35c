// Objects of C++, and an exception on the way out of operator new.
#include <cstdio>
#include <memory>
#include <new>
#include <vector>

struct Point {
    virtual ~Point() = default;
    long x = 1;
};
struct alignas(128) Wide {
    char bytes[128];
};

/* The compiler must not see that an object is given back at once: it would leave both out. */
template <typename T> static T *kept(T *object) {
    asm volatile("" : "+r"(object));
    return object;
}

__attribute__((noinline)) static Point *a_point() { return new Point; }

int main() {
    long sum = 0;
    std::vector<std::unique_ptr<Point>> points;
    for (int at = 0; at < 1000; at++)
        points.emplace_back(a_point());
    for (auto &point : points)
        sum += point->x;
    auto *wide = kept(new Wide[3]);
    wide[2].bytes[5] = 1;
    delete[] wide;
    volatile size_t far_too_much = (size_t)1 << 60;
    bool thrown = false;
    try {
        delete[] kept(new char[far_too_much]);
    } catch (const std::bad_alloc &) {
        thrown = true;
    }
    auto *after = kept(new (std::nothrow) long(7));
    sum += *after;
    delete after;
    std::puts("done");
    return sum == 1007 && thrown ? 0 : 1;
}
