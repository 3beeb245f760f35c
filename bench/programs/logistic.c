/*
 * Sparse logistic regression: each pass goes through all examples, whose features are
 * Zipf-distributed as words are, and changes the weights.
 *
 *     logistic [EXAMPLES [FEATURES [PASSES [SEED]]]]
 */
#include "random.h"

/* Up to index -1, as liblinear has them. */
struct feature {
    int index;
    double value;
};

int main(int count, char **words) {
    uint64_t examples = argument(count, words, 1, 200000), features = argument(count, words, 2, 1000000), passes = argument(count, words, 3, 6),
             state = argument(count, words, 4, 1);
    struct feature **example = malloc(examples * sizeof *example);
    double *label = malloc(examples * sizeof *label), *weight = calloc(features, sizeof *weight);
    struct zipf zipf = zipf_of(features, 0.9);
    for (uint64_t at = 0; at < examples; at++) {
        int length = 5 + (int)random_below(&state, 31);
        example[at] = malloc((size_t)(length + 1) * sizeof **example);
        double truth = 0;
        for (int f = 0; f < length; f++) {
            int index = (int)scattered(zipf_next(&zipf, &state), features);
            example[at][f] = (struct feature){index, 1};
            truth += index % 3 - 1;
        }
        example[at][length].index = -1;
        label[at] = truth + random_unit(&state) > 0.5 ? 1 : -1;
    }
    uint64_t right = 0;
    measured_part_begins();
    for (uint64_t pass = 0; pass < passes; pass++) {
        right = 0;
        for (uint64_t at = 0; at < examples; at++) {
            double score = 0;
            for (const struct feature *f = example[at]; f->index >= 0; f++)
                score += weight[f->index] * f->value;
            right += score * label[at] > 0;
            double step = 0.1 * label[at] / (1 + exp(label[at] * score));
            for (const struct feature *f = example[at]; f->index >= 0; f++)
                weight[f->index] += step * f->value;
        }
    }
    measured_part_ends();
    printf("%.3f right\n", (double)right / (double)examples);
    return right > examples / 2 ? 0 : 1;
}
