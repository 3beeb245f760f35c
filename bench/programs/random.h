/*
 * Seeded random numbers and Zipf ranks, the same on every machine. Also the recorder's two calls,
 * which are there if the program is linked with it.
 */
#ifndef RANDOM_H
#define RANDOM_H
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef __cplusplus
extern "C" {
#endif
void terrace_record_start(void) __attribute__((weak));
void terrace_record_stop(void) __attribute__((weak));
#ifdef __cplusplus
}
#endif

/* What was loaded does not count. */
static inline void measured_part_begins(void) {
    if (terrace_record_start)
        terrace_record_start();
}
/* Nor does tidying up. */
static inline void measured_part_ends(void) {
    if (terrace_record_stop)
        terrace_record_stop();
}

/* SplitMix64 (Steele, Lea, Flood 2014). */
static inline uint64_t random_next(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}
/* Below a limit; the bias of a modulus is far below what matters here. */
static inline uint64_t random_below(uint64_t *state, uint64_t limit) { return random_next(state) % limit; }
static inline double random_unit(uint64_t *state) { return (double)(random_next(state) >> 11) * 0x1p-53; }

/* Ranks from 0 with probability in proportion to (rank + 1)^-skew: rejection-inversion (Hörmann, Derflinger 1996). */
struct zipf {
    double count, skew, first, last, cut;
};
static inline double zipf_integral(double skew, double x) {
    double log_x = log(x), t = (1 - skew) * log_x;
    return fabs(t) > 1e-8 ? expm1(t) / t * log_x : log_x;
}
static inline double zipf_inverse(double skew, double y) {
    double t = y * (1 - skew);
    if (t < -1)
        t = -1;
    return exp(fabs(t) > 1e-8 ? log1p(t) / t * y : y);
}
static inline struct zipf zipf_of(uint64_t count, double skew) {
    struct zipf z = {(double)count, skew, 0, 0, 0};
    z.first = zipf_integral(skew, 1.5) - 1;
    z.last = zipf_integral(skew, z.count + 0.5);
    z.cut = 2 - zipf_inverse(skew, zipf_integral(skew, 2.5) - pow(2, -skew));
    return z;
}
static inline uint64_t zipf_next(const struct zipf *z, uint64_t *state) {
    for (;;) {
        double u = z->last + random_unit(state) * (z->first - z->last), x = zipf_inverse(z->skew, u), k = floor(x + 0.5);
        k = k < 1 ? 1 : k > z->count ? z->count : k;
        if (k - x <= z->cut || u >= zipf_integral(z->skew, k + 0.5) - pow(k, -z->skew))
            return (uint64_t)k - 1;
    }
}

/* Popular ranks are scattered over the keys: a multiplication by an odd number, folded into the
 * count, which is no multiple of it. */
static inline uint64_t scattered(uint64_t rank, uint64_t count) { return rank * 48611 % count; }

static inline uint64_t argument(int count, char **words, int at, uint64_t otherwise) {
    return at < count ? strtoull(words[at], NULL, 10) : otherwise;
}
#endif
