/*
 * docs/peers.md against the tables of peers: every row is there, as it is here, and no other. With the argument "print" the
 * tables are printed instead, to be taken over.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "config/peers.h"

#define PAGE TSR_SOURCE_DIR "/docs/peers.md"

/* "drop: drop, truncate: right"; what a value outside of it means is left to the message. */
static void put_map(tsr_text *out, const tsr_key_translation *map)
{
    for (const tsr_key_translation *t = map; t && t->from; t++)
        tsr_text_printf(out, "%s%s: %s", t > map ? ", " : "", t->from, t->to ? t->to : "nothing");
}

static void put_renamed(tsr_text *out, const tsr_peer *peer)
{
    for (const tsr_key_alias *row = peer->renamed; row && row->name; row++) {
        tsr_text_printf(out, "| `%s` | `%s` | ", row->name, row->key);
        put_map(out, row->map);
        tsr_text_puts(out, " |\n");
    }
    for (const tsr_peer_converted *row = peer->converted; row && row->name; row++)
        if (row->here)
            tsr_text_printf(out, "| `%s` | `%s` | %s |\n", row->name, row->here, row->what);
        else
            tsr_text_printf(out, "| `%s` | | %s |\n", row->name, row->what);
}

static void put_refused(tsr_text *out, const tsr_peer *peer)
{
    for (const tsr_key_peer *row = peer->others; row && row->name; row++)
        if (row->nothing)
            tsr_text_printf(out, "| `%s` | %s | %s |\n", row->name, row->nothing, row->why);
}

/* One line. */
static void put_idle(tsr_text *out, const tsr_peer *peer)
{
    bool first = true;
    for (const tsr_key_peer *row = peer->others; row && row->name; row++)
        if (!row->nothing) {
            tsr_text_printf(out, "%s`%s`", first ? "" : ", ", row->name);
            first = false;
        }
    tsr_text_puts(out, first ? "" : "\n");
}

static void put_defaults(tsr_text *out, const tsr_peer *peer)
{
    for (const tsr_peer_default *row = peer->defaults; row && row->key; row++)
        tsr_text_printf(out, "%s`%s: %s`", row == peer->defaults ? "" : ", ", row->key, row->value);
    tsr_text_puts(out, peer->defaults ? "\n" : "");
}

static void put_all(tsr_text *out)
{
    for (int i = 0; i < tsr_peers_count(); i++) {
        put_renamed(out, tsr_peers_at(i));
        put_refused(out, tsr_peers_at(i));
        put_idle(out, tsr_peers_at(i));
        put_defaults(out, tsr_peers_at(i));
    }
    assert_false(out->failed);
}

static int count_rows(const char *text)
{
    int count = !strncmp(text, "| `", 3);
    for (const char *p = text; (p = strstr(p, "\n| `")); p++)
        count++;
    return count;
}

static void test_page(void **state)
{
    (void)state;
    tsr_text tables = {0}, page = {0};
    int missing = 0;
    put_all(&tables);
    assert_int_equal(tsr_config_read_file(&page, PAGE), TSR_OK);
    char *rest = tables.data;
    int rows = count_rows(tables.data);
    for (char *line; (line = strsep(&rest, "\n"));) {
        tsr_text whole = {0};
        tsr_text_printf(&whole, "\n%s\n", line);
        if (*line && !strstr(page.data, whole.data)) {
            print_message("docs/peers.md lacks this line:\n%s\n", line);
            missing++;
        }
        tsr_text_free(&whole);
    }
    assert_int_equal(missing, 0);
    assert_int_equal(count_rows(page.data), rows);
    tsr_text_free(&tables);
    tsr_text_free(&page);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_page)};
    if (argc > 1 && !strcmp(argv[1], "print")) {
        tsr_text text = {0};
        put_all(&text);
        printf("%s", tsr_text_string(&text));
        tsr_text_free(&text);
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
