/*
 * A chained hash table whose buckets are arenas. An entry, its key and its value lie on the page of
 * those before it, and what is seldom read lies elsewhere. The table is filled, and then a tenth of
 * it is read for 5 s, or as long as is said. What is resident before and after is printed.
 *
 *     cc -O2 buckets.c $(pkg-config --cflags --libs terrace) -o buckets && ./buckets
 *     terrace run --dram 50% -- ./buckets
 */
#include <stdio.h>
#include <string.h>
#include <terrace.h>
#include <time.h>

enum { BUCKETS = 1 << 16, KEYS = 160000 };

struct entry {
    struct entry *next;
    char *key, *value;
    char *comment; /* seldom read */
};

static struct bucket {
    terrace_arena arena;
    struct entry *first;
} table[BUCKETS];

static struct bucket *bucket_of(const char *key) {
    unsigned hash = 5381;
    for (; *key; key++)
        hash = hash * 33 + (unsigned char)*key;
    return &table[hash % BUCKETS];
}

static char *copy(const char *text, terrace_placement where) {
    char *to = mnalloc(strlen(text) + 1, where);
    return to ? strcpy(to, text) : NULL;
}

static int insert(const char *key, const char *value, const char *comment) {
    struct bucket *bucket = bucket_of(key);
    if (!bucket->arena)
        bucket->arena = terrace_arena_create(TERRACE_DEFAULT);
    struct entry *entry = mnalloc(sizeof *entry, terrace_in(bucket->arena));
    if (!entry)
        return 0;
    entry->key = copy(key, terrace_next_to(entry));
    entry->value = copy(value, terrace_next_to(entry));
    entry->comment = copy(comment, TERRACE_COLD);
    entry->next = bucket->first;
    bucket->first = entry;
    return entry->key && entry->value && entry->comment;
}

static const char *find(const char *key) {
    for (struct entry *entry = bucket_of(key)->first; entry; entry = entry->next)
        if (!strcmp(entry->key, key))
            return entry->value;
    return NULL;
}

/* Keys from 0 on that are found, with the right value. */
static int found_of(int keys) {
    char key[32], value[64];
    int found = 0;
    for (int n = 0; n < keys; n++) {
        snprintf(key, sizeof key, "user-%d", n);
        snprintf(value, sizeof value, "the value of user %d", n);
        const char *is = find(key);
        found += is && !strcmp(is, value);
    }
    return found;
}

/* Resident memory of this process, MiB; 0 where /proc is not mounted. */
static long resident_mib(void) {
    long kib = 0;
    char line[256];
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status))
        sscanf(line, "VmRSS: %ld", &kib);
    if (status)
        fclose(status);
    return kib / 1024;
}

int main(int argc, char **argv) {
    int seconds = argc > 1 ? atoi(argv[1]) : 5;
    char key[32], value[64], biography[700] = "";
    for (size_t n = 0; n + 40 < sizeof biography; n = strlen(biography))
        snprintf(biography + n, sizeof biography - n, "line %zu, which nobody ever reads; ", n);
    for (int n = 0; n < KEYS; n++) {
        snprintf(key, sizeof key, "user-%d", n);
        snprintf(value, sizeof value, "the value of user %d", n);
        if (!insert(key, value, biography))
            return 1;
    }
    printf("%ld MiB are resident once it is filled\n", resident_mib());
    fflush(stdout);
    for (time_t end = time(NULL) + seconds; time(NULL) < end;)
        if (found_of(KEYS / 10) != KEYS / 10)
            return 1;
    printf("%ld MiB are after %d s in which a tenth was read\n", resident_mib(), seconds);
    int found = found_of(KEYS);
    size_t buckets = 0, objects = 0, pages = 0;
    for (int n = 0; n < BUCKETS; n++) {
        terrace_arena_figures figures;
        if (!table[n].arena || terrace_arena_query(table[n].arena, &figures))
            continue;
        buckets++;
        objects += figures.objects;
        pages += figures.pages;
        /* All of it, without touching any. */
        terrace_arena_destroy(table[n].arena);
    }
    printf("%d of %d keys found; %.1f objects of a bucket lie on %.2f pages\n", found, KEYS,
           (double)objects / (buckets + !buckets), (double)pages / (buckets + !buckets));
    return found != KEYS;
}
