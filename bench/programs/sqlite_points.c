/*
 * SQLite in memory: a table of rows of 50 to 300 bytes with a second index. Zipf keys are looked
 * up, and now and then changed.
 *
 *     sqlite_points [ROWS [OPERATIONS [SEED]]]
 */
#include "random.h"
#include "sqlite3.h"
#include <string.h>

#define MUST(call)                                                                        \
    do {                                                                                  \
        int status = (call);                                                              \
        if (status != SQLITE_OK && status != SQLITE_DONE && status != SQLITE_ROW) {       \
            fprintf(stderr, "%s: %s\n", #call, sqlite3_errmsg(db));                       \
            return 1;                                                                     \
        }                                                                                 \
    } while (0)

static sqlite3 *db;

/* Text that compresses as text does: words of a small vocabulary. */
static int text(char *to, uint64_t *state) {
    static const char *words[] = {"amber ", "birch ", "cedar ", "delta ", "ember ", "flint ", "grove ", "heath "};
    int length = 50 + (int)random_below(state, 251), at = 0;
    while (at < length)
        at += sprintf(to + at, "%s", random_below(state, 4) ? words[random_below(state, 8)] : "0123456789 " + random_below(state, 9));
    return length;
}

int main(int count, char **words) {
    uint64_t rows = argument(count, words, 1, 300000), operations = argument(count, words, 2, 1000000), state = argument(count, words, 3, 1);
    char row[400];
    sqlite3_stmt *insert, *by_id, *by_code, *update;
    MUST(sqlite3_open(":memory:", &db));
    MUST(sqlite3_exec(db, "create table item(id integer primary key, code integer, body text)", 0, 0, 0));
    MUST(sqlite3_exec(db, "create index item_code on item(code)", 0, 0, 0));
    MUST(sqlite3_prepare_v2(db, "insert into item values(?, ?, ?)", -1, &insert, 0));
    MUST(sqlite3_exec(db, "begin", 0, 0, 0));
    for (uint64_t at = 0; at < rows; at++) {
        uint64_t id = at * 7919 % rows;
        sqlite3_bind_int64(insert, 1, (sqlite3_int64)id);
        sqlite3_bind_int64(insert, 2, (sqlite3_int64)(id * 2654435761u % 1000000007));
        sqlite3_bind_text(insert, 3, row, text(row, &state), SQLITE_TRANSIENT);
        MUST(sqlite3_step(insert));
        sqlite3_reset(insert);
    }
    MUST(sqlite3_exec(db, "commit", 0, 0, 0));
    sqlite3_finalize(insert);
    MUST(sqlite3_prepare_v2(db, "select body from item where id = ?", -1, &by_id, 0));
    MUST(sqlite3_prepare_v2(db, "select body from item where code = ?", -1, &by_code, 0));
    MUST(sqlite3_prepare_v2(db, "update item set body = ? where id = ?", -1, &update, 0));
    struct zipf zipf = zipf_of(rows, 0.99);
    uint64_t found = 0, bytes = 0;
    /* The first part fills the cache. */
    for (uint64_t at = 0; at < operations; at++) {
        if (at == operations / 4)
            measured_part_begins();
        uint64_t id = scattered(zipf_next(&zipf, &state), rows), kind = random_below(&state, 100);
        sqlite3_stmt *ask = kind < 10 ? update : kind < 30 ? by_code : by_id;
        if (ask == update)
            sqlite3_bind_text(update, 1, row, text(row, &state), SQLITE_TRANSIENT);
        sqlite3_bind_int64(ask, ask == update ? 2 : 1, (sqlite3_int64)(ask == by_code ? id * 2654435761u % 1000000007 : id));
        int status = sqlite3_step(ask);
        if (status == SQLITE_ROW) {
            found++;
            bytes += strlen((const char *)sqlite3_column_text(ask, 0));
        } else {
            MUST(status);
        }
        sqlite3_reset(ask);
    }
    measured_part_ends();
    printf("%llu found, %llu bytes\n", (unsigned long long)found, (unsigned long long)bytes);
    sqlite3_finalize(by_id);
    sqlite3_finalize(by_code);
    sqlite3_finalize(update);
    return sqlite3_close(db) == SQLITE_OK ? 0 : 1;
}
