/*
 * Cross sections looked up in tables at random, as XSBench does for Monte-Carlo neutron transport.
 * Each lookup is a search in one grid of all energies. Then, for each nuclide of a material, two
 * neighbouring rows of its own table are read.
 *
 *     lookup [ENERGIES of a nuclide [LOOKUPS [SEED]]]
 */
#include "random.h"
#include <string.h>

#define NUCLIDES 68
#define MATERIALS 12
#define REACTIONS 5

struct row {
    double energy, sections[REACTIONS];
};

/* Nuclides of each material, and how often a material is met (Hoogenboom-Martin, as XSBench has
 * it): fuel has half of the nuclides. */
static const int sizes[MATERIALS] = {34, 5, 4, 4, 27, 21, 21, 21, 21, 21, 9, 9};
static const double chances[MATERIALS] = {0.140, 0.052, 0.275, 0.134, 0.154, 0.064, 0.066, 0.055, 0.008, 0.015, 0.025, 0.013};

static int by_energy(const void *a, const void *b) {
    double x = ((const struct row *)a)->energy, y = ((const struct row *)b)->energy;
    return (x > y) - (x < y);
}
static int by_number(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int count, char **words) {
    uint64_t energies = argument(count, words, 1, 4000), lookups = argument(count, words, 2, 600000), state = argument(count, words, 3, 1);
    struct row *rows[NUCLIDES];
    uint64_t all = NUCLIDES * energies;
    double *grid = malloc(all * sizeof *grid);
    for (int n = 0; n < NUCLIDES; n++) {
        rows[n] = malloc(energies * sizeof *rows[n]);
        for (uint64_t at = 0; at < energies; at++) {
            rows[n][at].energy = random_unit(&state);
            for (int r = 0; r < REACTIONS; r++)
                rows[n][at].sections[r] = random_unit(&state);
        }
        qsort(rows[n], energies, sizeof *rows[n], by_energy);
        for (uint64_t at = 0; at < energies; at++)
            grid[(uint64_t)n * energies + at] = rows[n][at].energy;
    }
    qsort(grid, all, sizeof *grid, by_number);
    /* For each energy of the common grid: where each nuclide's table is below it. */
    uint32_t *places = malloc(all * NUCLIDES * sizeof *places);
    uint32_t at_now[NUCLIDES] = {0};
    for (uint64_t at = 0; at < all; at++)
        for (int n = 0; n < NUCLIDES; n++) {
            while (at_now[n] + 2 < energies && rows[n][at_now[n] + 1].energy <= grid[at])
                at_now[n]++;
            places[at * NUCLIDES + (uint64_t)n] = at_now[n];
        }
    unsigned char materials[MATERIALS][NUCLIDES];
    for (int m = 0; m < MATERIALS; m++)
        for (int n = 0; n < sizes[m]; n++)
            materials[m][n] = (unsigned char)random_below(&state, NUCLIDES);
    double sum = 0;
    measured_part_begins();
    for (uint64_t lookup = 0; lookup < lookups; lookup++) {
        double energy = random_unit(&state), chance = random_unit(&state);
        int material = 0;
        while (material < MATERIALS - 1 && (chance -= chances[material]) > 0)
            material++;
        uint64_t low = 0, high = all - 1;
        while (high - low > 1) {
            uint64_t middle = (low + high) / 2;
            if (grid[middle] > energy)
                high = middle;
            else
                low = middle;
        }
        double total[REACTIONS] = {0};
        for (int n = 0; n < sizes[material]; n++) {
            int nuclide = materials[material][n];
            const struct row *row = &rows[nuclide][places[low * NUCLIDES + (uint64_t)nuclide]];
            double part = (row[1].energy - energy) / (row[1].energy - row[0].energy);
            for (int r = 0; r < REACTIONS; r++)
                total[r] += row[1].sections[r] - part * (row[1].sections[r] - row[0].sections[r]);
        }
        sum += total[lookup % REACTIONS];
    }
    measured_part_ends();
    printf("%.6g\n", sum);
    return 0;
}
