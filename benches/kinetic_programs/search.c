/* Emits the particles whose energy is above a threshold, as crates/ebpf/tests/objects/particles.c does, but as a native
 * program. Arguments: the prefix of the keys, the threshold. */
#include <stdio.h>

#include "skytether_kinetic.h"

static char key[4097], value[1 << 20];

int main(int count, char **arguments) {
    if (count < 3 || kinetic_open() < 0) return 2;
    size_t prefix = strlen(arguments[1]);
    float above = strtof(arguments[2], 0), energy;
    long length = (long)prefix, bytes;
    memcpy(key, arguments[1], prefix);
    while ((length = kinetic_next(key, (size_t)length, key, sizeof key)) > 0) {
        if ((size_t)length < prefix || memcmp(key, arguments[1], prefix) != 0) break;
        if ((bytes = kinetic_get(key, (size_t)length, value, sizeof value)) < 0) return 1;
        for (const char *record = value; record + 48 <= value + bytes; record += 48) {
            memcpy(&energy, record + 44, 4);
            if (energy > above && !kinetic_emit(record, 48)) return 3;
        }
    }
    return 0;
}
