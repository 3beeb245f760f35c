// Terrace for C++17: an owner of an arena, an allocator for containers, and a memory resource. See
// terrace.h for what placements mean, and for the two ways to use it. Where Terrace is not there,
// these allocate as malloc does.
#ifndef TERRACE_HPP
#define TERRACE_HPP

#include "terrace.h"

#include <cstddef>
#include <cstdlib>
#include <memory_resource>
#include <new>

namespace terrace {

using placement = terrace_placement;

inline placement next_to(const void *object) { return terrace_next_to(object); }
inline placement in(terrace_arena arena) { return terrace_in(arena); }

// Whether objects placed by either live as long. An arena that ends takes all its objects along,
// including those placed next to one of them.
inline bool live_alike(placement a, placement b) {
    auto in_none = [](placement where) { return where.kind != 1 && where.kind != 4; };
    return (in_none(a) && in_none(b)) || (a.kind == b.kind && a.what == b.what);
}

[[noreturn]] inline void no_memory() {
#ifdef __cpp_exceptions
    throw std::bad_alloc();
#else
    std::abort();
#endif
}

// Allocates at least `bytes` bytes; throws std::bad_alloc. std::free takes them back.
inline void *allocate(std::size_t bytes, std::size_t alignment, placement where) {
    void *memory = nullptr;
    // malloc need not align an object that is smaller than its alignment that far.
    if (alignment <= 16 && alignment <= bytes)
        memory = TERRACE_MNALLOC(bytes, where);
    else if (bytes <= static_cast<std::size_t>(-1) - alignment)
        // aligned_alloc wants a multiple of the alignment.
        memory = TERRACE_MNALLOC_ALIGNED(alignment, (bytes + alignment - 1) / alignment * alignment, where);
    if (!memory)
        no_memory();
    return memory;
}

// Owns an arena. Its objects are freed when this ends, without destructors. Containers in it have
// to end first, or hold nothing that needs destructors.
class arena {
public:
    explicit arena(placement where = TERRACE_DEFAULT) : id_(TERRACE_ARENA_CREATE(where)) {}
    ~arena() {
        if (id_ != 0)
            (void)TERRACE_ARENA_DESTROY(id_);
    }
    arena(arena &&other) noexcept : id_(other.id_) { other.id_ = 0; }
    arena &operator=(arena &&other) noexcept {
        terrace_arena id = other.id_;
        other.id_ = id_;
        id_ = id;
        return *this;
    }
    arena(const arena &) = delete;
    arena &operator=(const arena &) = delete;

    terrace_arena id() const { return id_; }
    operator placement() const { return id_ != 0 ? terrace_in(id_) : TERRACE_DEFAULT; }

private:
    terrace_arena id_;
};

// For containers: std::list<int, terrace::allocator<int>> list(bucket);
template <class T> class allocator {
public:
    using value_type = T;

    allocator(placement where = TERRACE_DEFAULT) noexcept : where_(where) {}
    allocator(const arena &where) noexcept : where_(where) {}
    template <class U> allocator(const allocator<U> &other) noexcept : where_(other.where()) {}

    T *allocate(std::size_t count) {
        if (count > static_cast<std::size_t>(-1) / 2 / sizeof(T))
            no_memory();
        return static_cast<T *>(terrace::allocate(count * sizeof(T), alignof(T), where_));
    }
    void deallocate(T *memory, std::size_t) noexcept { std::free(memory); }

    placement where() const noexcept { return where_; }

    // Containers take each other's memory where these are equal. Otherwise they move element by
    // element.
    template <class U> friend bool operator==(const allocator &a, const allocator<U> &b) noexcept { return live_alike(a.where(), b.where()); }
    template <class U> friend bool operator!=(const allocator &a, const allocator<U> &b) noexcept { return !live_alike(a.where(), b.where()); }

private:
    placement where_;
};

// For std::pmr containers.
class memory_resource : public std::pmr::memory_resource {
public:
    explicit memory_resource(placement where = TERRACE_DEFAULT) noexcept : where_(where) {}

private:
    void *do_allocate(std::size_t bytes, std::size_t alignment) override { return terrace::allocate(bytes, alignment, where_); }
    void do_deallocate(void *memory, std::size_t, std::size_t) override { std::free(memory); }
    bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override {
#ifdef __cpp_rtti
        const auto *same = dynamic_cast<const memory_resource *>(&other);
        return same && live_alike(where_, same->where_);
#else
        return this == &other;
#endif
    }

    placement where_;
};

} // namespace terrace

#endif
