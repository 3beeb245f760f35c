/*
 * cache.c with entries that move, so that popular ones share pages: `diff cache.c movable_cache.c`.
 *
 *     cc -O2 -DNDEBUG movable_cache.c $(pkg-config --cflags --libs terrace_objects) -o movable_cache
 *     terrace run --dram 60% -- ./movable_cache
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <terrace_objects.h>

static terrace_objects *heap;

struct entry {
    struct entry *next; /* of the same bucket */
    uint32_t hash;
    uint16_t key_len, value_len;
    bool used; /* since the hand came by */
    char bytes[]; /* the key, then the value */
};

struct cache {
    struct entry **buckets;
    uint32_t mask;
    uint32_t hand; /* the bucket from which the next entry is dropped */
    size_t entries, bytes, most_bytes;
    uint64_t hits, misses, dropped;
};

static uint32_t hash_of(const char *key, size_t len) {
    uint32_t hash = 2166136261u;
    for (size_t at = 0; at < len; at++)
        hash = (hash ^ (unsigned char)key[at]) * 16777619u;
    return hash ^ hash >> 15;
}

static size_t size_of(const struct entry *entry) {
    return sizeof *entry + entry->key_len + entry->value_len;
}

static bool cache_create(struct cache *cache, uint32_t buckets, size_t most_bytes) {
    *cache = (struct cache){.mask = buckets - 1, .most_bytes = most_bytes};
    cache->buckets = calloc(buckets, sizeof *cache->buckets);
    return cache->buckets != NULL;
}

/* The reference to an entry: in its bucket, or in the entry before it. */
static struct entry **find(struct cache *cache, uint32_t hash, const char *key, size_t len) {
    struct entry **link = &cache->buckets[hash & cache->mask];
    for (struct entry *entry; (entry = *link) != NULL; link = &entry->next)
        if (entry->hash == hash && entry->key_len == len && memcmp(entry->bytes, key, len) == 0)
            break;
    return link;
}

static void drop(struct cache *cache, struct entry **link) {
    struct entry *entry = *link;
    *link = entry->next;
    cache->entries--;
    cache->bytes -= size_of(entry);
    terrace_objects_free(heap, entry);
}

/* Drops entries that were not used since the hand came by last, until there is room. */
static void make_room(struct cache *cache, size_t bytes) {
    while (cache->entries > 0 && cache->bytes + bytes > cache->most_bytes) {
        for (struct entry **link = &cache->buckets[cache->hand++ & cache->mask]; *link;) {
            if ((*link)->used) {
                (*link)->used = false;
                link = &(*link)->next;
            } else {
                drop(cache, link);
                cache->dropped++;
            }
        }
    }
}

static const char *cache_get(struct cache *cache, const char *key, size_t *value_len) {
    size_t len = strlen(key);
    struct entry *entry = *find(cache, hash_of(key, len), key, len);
    if (!entry) {
        cache->misses++;
        return NULL;
    }
    cache->hits++;
    entry->used = true;
    terrace_objects_touch(heap, entry);
    *value_len = entry->value_len;
    return entry->bytes + entry->key_len;
}

static bool cache_delete(struct cache *cache, const char *key) {
    size_t len = strlen(key);
    struct entry **link = find(cache, hash_of(key, len), key, len);
    if (!*link)
        return false;
    drop(cache, link);
    return true;
}

static bool cache_set(struct cache *cache, const char *key, const char *value, size_t value_len) {
    size_t len = strlen(key);
    if (len > UINT16_MAX || value_len > UINT16_MAX)
        return false;
    cache_delete(cache, key);
    size_t bytes = sizeof(struct entry) + len + value_len;
    make_room(cache, bytes);
    struct entry *entry = terrace_objects_alloc(heap, bytes);
    if (!entry)
        return false;
    entry->hash = hash_of(key, len);
    entry->key_len = (uint16_t)len;
    entry->value_len = (uint16_t)value_len;
    entry->used = true;
    memcpy(entry->bytes, key, len);
    memcpy(entry->bytes + len, value, value_len);
    terrace_objects_ready(heap, entry);
    struct entry **bucket = &cache->buckets[entry->hash & cache->mask];
    entry->next = *bucket;
    *bucket = entry;
    cache->entries++;
    cache->bytes += bytes;
    return true;
}

/* Moves one entry: copies it, and has the reference to it name the copy. */
static int relocate(void *context, struct terrace_objects_move *move) {
    struct entry *entry = move->object;
    struct entry **link = find(context, entry->hash, entry->bytes, entry->key_len);
    if (*link != entry)
        return TERRACE_OBJECTS_DEAD;
    memcpy(move->room, entry, size_of(entry));
    *link = move->room;
    return TERRACE_OBJECTS_MOVED;
}

static void cache_destroy(struct cache *cache) {
    for (uint32_t bucket = 0; bucket <= cache->mask; bucket++)
        while (cache->buckets[bucket])
            drop(cache, &cache->buckets[bucket]);
    free(cache->buckets);
}

/* ---- A program that uses it ---- */

enum { KEYS = 1400000, REQUESTS = 20000000, VALUE = 80 };

static uint64_t random_state = 1;

static uint32_t random_below(uint32_t limit) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) * limit >> 31);
}

/* One key in eight is popular: seven requests of eight go there. */
static uint32_t some_key(void) {
    uint32_t number = random_below(KEYS / 8) * 8;
    return random_below(8) ? number : number + random_below(8);
}

static void value_of(uint32_t number, char *value) {
    for (size_t at = 0; at < VALUE; at++)
        value[at] = (char)('a' + (number * 31 + at * 7) % 26);
}

static bool request(struct cache *cache, uint32_t number) {
    char key[32], value[VALUE];
    size_t len = 0;
    snprintf(key, sizeof key, "key:%u", number);
    value_of(number, value);
    const char *found = cache_get(cache, key, &len);
    if (!found)
        return cache_set(cache, key, value, VALUE);
    if (len != VALUE || memcmp(found, value, VALUE) != 0) {
        fprintf(stderr, "cache: the value of %s is wrong\n", key);
        return false;
    }
    if (random_below(100) == 0)
        cache_delete(cache, key);
    return true;
}

/* Resident memory of this process, MiB, where pages are 4 KiB; 0 without /proc. */
static long resident_mib(void) {
    long pages = 0;
    FILE *statm = fopen("/proc/self/statm", "r");
    bool is_read = statm && fscanf(statm, "%*d %ld", &pages) == 1 && fclose(statm) == 0;
    return is_read ? pages / 256 : 0;
}

int main(int count, char **words) {
    uint32_t requests = count > 1 ? (uint32_t)strtoul(words[1], NULL, 10) : REQUESTS;
    uint32_t set_first = requests < KEYS ? requests : KEYS;
    struct cache cache;
    long filled = 0;
    struct terrace_objects_settings settings = {.hot_bytes = 40 << 20}; /* as if fast memory had no more */
    heap = terrace_objects_create(&settings);
    if (!heap || !cache_create(&cache, 1 << 20, 160 << 20)) {
        perror("cache");
        return 1;
    }
    for (uint32_t at = 0; at < set_first + requests; at++) {
        if (at == set_first)
            filled = resident_mib();
        if (!request(&cache, at < set_first ? at : some_key()))
            return 1;
        if (at % 64 == 0)
            terrace_objects_step(heap, relocate, &cache, 300000);
    }
    struct terrace_objects_counters told = terrace_objects_counters(heap);
    printf("%llu entries moved, %llu busy, %llu misused\n", (unsigned long long)told.moved, (unsigned long long)told.busy,
           (unsigned long long)told.misused);
    printf("%zu entries, %zu bytes, %.1f %% hits, %llu dropped\n", cache.entries, cache.bytes,
           100.0 * (double)cache.hits / (double)(cache.hits + cache.misses), (unsigned long long)cache.dropped);
    printf("%ld MiB were resident once it was filled\n", filled);
    printf("%ld MiB were after %u requests\n", resident_mib(), requests);
    cache_destroy(&cache);
    terrace_objects_destroy(heap);
    return 0;
}
