// Programs about keys: the first argument says which.
#include <stdio.h>
#include <string.h>

#include "skytether_kinetic.h"

static char value[1 << 20];

static int is(const char *given, const char *wanted) { return strcmp(given, wanted) == 0; }

// Sends a request of that type without a body, and prints its status.
static void ask(const char *name, unsigned kind) {
    kinetic_message nothing = {kinetic.part, 0};
    printf("%s %ld\n", name, kinetic_call(kind, &nothing, 0, 0, 0, 0));
}

int main(int count, char **arguments) {
    long opened = kinetic_open();
    if (count < 2 || opened < 0) return 100;
    const char *which = arguments[1];
    if (is(which, "upper") && count == 4) {
        // Reads one key, writes another, and reads that again.
        long length = kinetic_get(arguments[2], strlen(arguments[2]), value, sizeof value);
        if (length < 0) return (int)-length;
        for (long n = 0; n < length; n++)
            if (value[n] >= 'a' && value[n] <= 'z') value[n] -= 32;
        long put = kinetic_put(arguments[3], strlen(arguments[3]), value, (size_t)length);
        if (put < 0) return (int)-put;
        memset(value, 0, sizeof value);
        if (kinetic_get(arguments[3], strlen(arguments[3]), value, sizeof value) != length) return 101;
        printf("%s", value);
        return 0;
    }
    if (is(which, "list")) {
        char key[4096] = "";
        for (long length = 0; (length = kinetic_next(key, (size_t)length, key, sizeof key)) >= 0;) printf("%.*s ", (int)length, key);
        return 0;
    }
    if (is(which, "delete")) return (int)-kinetic_delete(arguments[2], strlen(arguments[2]));
    if (is(which, "emit")) return kinetic_emit(arguments[2], strlen(arguments[2])) ? atoi(arguments[3]) : 1;
    if (is(which, "forbidden")) {
        ask("setup", 22), ask("security", 26), ask("push", 28), ask("scan", 38), ask("power", 48), ask("program", 50), ask("noop", 30);
        return 0;
    }
    if (is(which, "forge")) {
        // With a wrong key, and as another identity that exists.
        const char *key = kinetic.key;
        kinetic.key = "asdfasdf";
        ask("wrong key", 30);
        kinetic.identity = 1;
        ask("other identity", 30);
        (void)key;
        return 0;
    }
    if (is(which, "fail")) {
        fputs("it went wrong: badly\n", stderr);
        return 3;
    }
    if (is(which, "write")) {
        // Writes a key again and again until it is ended.
        for (long n = 0;; n++) {
            int length = snprintf(value, sizeof value, "%ld", n);
            if (kinetic_put(arguments[2], strlen(arguments[2]), value, (size_t)length) < 0) pause();
        }
    }
    return 99;
}
