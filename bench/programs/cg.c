/*
 * A sparse solver: conjugate gradients on a symmetric matrix with random places and a heavy
 * diagonal, as in the NAS benchmark CG.
 *
 *     cg [ROWS [ENTRIES in each row [ITERATIONS [SEED]]]]
 */
#include "random.h"
#include <string.h>

static uint64_t *start, rows;
static uint32_t *column;
static double *value;

static void multiply(const double *x, double *y) {
    for (uint64_t row = 0; row < rows; row++) {
        double sum = 0;
        for (uint64_t at = start[row]; at < start[row + 1]; at++)
            sum += value[at] * x[column[at]];
        y[row] = sum;
    }
}
static double product(const double *x, const double *y) {
    double sum = 0;
    for (uint64_t row = 0; row < rows; row++)
        sum += x[row] * y[row];
    return sum;
}

int main(int count, char **words) {
    rows = argument(count, words, 1, 400000);
    uint64_t entries = argument(count, words, 2, 16), iterations = argument(count, words, 3, 15), state = argument(count, words, 4, 1);
    /* Half of the entries are drawn, the others are their mirror images. */
    uint64_t drawn = rows * entries / 2;
    uint32_t *from = malloc(drawn * sizeof *from), *to = malloc(drawn * sizeof *to);
    start = calloc(rows + 2, sizeof *start);
    for (uint64_t at = 0; at < drawn; at++) {
        from[at] = (uint32_t)(at % rows);
        to[at] = (uint32_t)random_below(&state, rows);
        start[from[at] + 2]++, start[to[at] + 2]++;
    }
    for (uint64_t row = 0; row < rows; row++)
        start[row + 2] += start[row + 1] + 1;
    column = malloc((2 * drawn + rows) * sizeof *column);
    value = malloc((2 * drawn + rows) * sizeof *value);
    for (uint64_t row = 0; row < rows; row++) {
        column[start[row + 1]] = (uint32_t)row;
        value[start[row + 1]++] = (double)entries * 1.5;
    }
    for (uint64_t at = 0; at < drawn; at++) {
        double v = random_unit(&state) - 0.5;
        column[start[from[at] + 1]] = to[at], value[start[from[at] + 1]++] = v;
        column[start[to[at] + 1]] = from[at], value[start[to[at] + 1]++] = v;
    }
    free(from);
    free(to);
    size_t bytes = rows * sizeof(double);
    double *x = calloc(rows, sizeof *x), *r = malloc(bytes), *p = malloc(bytes), *q = malloc(bytes);
    for (uint64_t row = 0; row < rows; row++)
        r[row] = 1;
    memcpy(p, r, bytes);
    double rest = product(r, r), first = rest;
    measured_part_begins();
    for (uint64_t iteration = 0; iteration < iterations; iteration++) {
        multiply(p, q);
        double alpha = rest / product(p, q);
        for (uint64_t row = 0; row < rows; row++) {
            x[row] += alpha * p[row];
            r[row] -= alpha * q[row];
        }
        double next = product(r, r), beta = next / rest;
        for (uint64_t row = 0; row < rows; row++)
            p[row] = r[row] + beta * p[row];
        rest = next;
    }
    measured_part_ends();
    printf("residual %g of %g\n", rest, first);
    return rest < first ? 0 : 1;
}
