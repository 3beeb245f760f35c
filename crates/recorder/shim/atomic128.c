/* Atomic operations on 16 bytes, by the processor's own comparison and exchange. */
#include <stddef.h>

typedef unsigned __int128 number;

void terrace_recorder_reads(const void *from, size_t bytes);
void terrace_recorder_writes(void *to, size_t bytes);

static number exchanged(number *at, number expected, number value) { return __sync_val_compare_and_swap(at, expected, value); }

number __tsan_atomic128_load(number *at, int order) {
    (void)order;
    terrace_recorder_reads(at, sizeof *at);
    return exchanged(at, 0, 0);
}
number __tsan_atomic128_compare_exchange_val(number *at, number expected, number value, int order, int otherwise) {
    (void)order, (void)otherwise;
    terrace_recorder_writes(at, sizeof *at);
    return exchanged(at, expected, value);
}
int __tsan_atomic128_compare_exchange_strong(number *at, number *expected, number value, int order, int otherwise) {
    number before = *expected, found = __tsan_atomic128_compare_exchange_val(at, before, value, order, otherwise);
    *expected = found;
    return found == before;
}
int __tsan_atomic128_compare_exchange_weak(number *at, number *expected, number value, int order, int otherwise) {
    return __tsan_atomic128_compare_exchange_strong(at, expected, value, order, otherwise);
}
#define CHANGE(name, result)                                          \
    number __tsan_atomic128_##name(number *at, number value, int order) { \
        (void)order;                                                  \
        terrace_recorder_writes(at, sizeof *at);                      \
        for (number before = exchanged(at, 0, 0);;) {                 \
            number found = exchanged(at, before, result);             \
            if (found == before)                                      \
                return before;                                        \
            before = found;                                           \
        }                                                             \
    }
CHANGE(exchange, value)
CHANGE(fetch_add, before + value)
CHANGE(fetch_sub, before - value)
CHANGE(fetch_and, before & value)
CHANGE(fetch_or, before | value)
CHANGE(fetch_xor, before ^ value)
CHANGE(fetch_nand, ~(before & value))
void __tsan_atomic128_store(number *at, number value, int order) { __tsan_atomic128_exchange(at, value, order); }
