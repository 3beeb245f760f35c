/*
 * A chained hash table whose buckets are arenas: an entry, its key and its value lie on the page of those before it, and what is seldom read lies elsewhere.
 *
 *     cc -O2 buckets.c $(pkg-config --cflags --libs terrace) -o buckets && ./buckets
 *     terrace run --dram 50% -- ./buckets
 */
#include <stdio.h>
#include <string.h>
#include <terrace.h>

enum { BUCKETS = 1 << 14, KEYS = 40000 };

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

int main(void) {
    char key[32], value[64];
    for (int n = 0; n < KEYS; n++) {
        snprintf(key, sizeof key, "user-%d", n);
        snprintf(value, sizeof value, "the value of user %d", n);
        if (!insert(key, value, "nobody ever reads this"))
            return 1;
    }
    int found = 0;
    for (int n = 0; n < KEYS; n++) {
        snprintf(key, sizeof key, "user-%d", n);
        snprintf(value, sizeof value, "the value of user %d", n);
        const char *is = find(key);
        found += is && !strcmp(is, value);
    }
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
    printf("%d of %d keys found; %.1f objects of a bucket lie on %.2f pages\n", found, KEYS, (double)objects / buckets, (double)pages / buckets);
    return found != KEYS;
}
