/* The drive, for native programs that run inside of it: a small client of the Kinetic protocol in one header.
 *
 * Compile with:  cc -O2 -static -I include -o program program.c
 *
 * A program finds a connection to the drive as file descriptor KINETIC_FD (3), and who it is there in KINETIC_IDENTITY
 * and KINETIC_KEY: an identity for this run, with the rights of the program's caller. It may get, put and delete values
 * and list keys; any client of the protocol can be used for that, and this is one. What the program writes to
 * KINETIC_OUTPUT_FD (4) is its output, which the drive stores under the output key of the request. What it prints, its
 * exit code and its standard error go to the caller.
 *
 * Functions return a length or 0, or the negative of the protocol's status code: -7 where there is no such key, -3
 * where the caller may not, -20 where the connection has ended. One request is under way at a time. The answers'
 * signatures are not verified, as nobody else has the other end.
 */
#ifndef SKYTETHER_KINETIC_H
#define SKYTETHER_KINETIC_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Status codes that programs ask for. */
enum { KINETIC_NOT_AUTHORIZED = 3, KINETIC_NOT_FOUND = 7, KINETIC_ENDED = 20 };

/* The file descriptor of the output. */
enum { KINETIC_OUTPUT = 4 };

/* The longest message, in bytes: a key of 4096 bytes and what is around it fit, and so does the drive's greeting. */
enum { KINETIC_MESSAGE = 1 << 16 };

/* ---- SHA-1 and HMAC (RFC 3174, RFC 2104) ---- */

typedef struct {
    uint32_t state[5];
    uint64_t length;
    uint8_t block[64];
} kinetic_sha1;

static void kinetic_sha1_block(kinetic_sha1 *sha) {
    uint32_t words[80], a = sha->state[0], b = sha->state[1], c = sha->state[2], d = sha->state[3], e = sha->state[4];
    for (int n = 0; n < 16; n++) {
        const uint8_t *at = sha->block + 4 * n;
        words[n] = (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
    }
    for (int n = 16; n < 80; n++) {
        uint32_t mixed = words[n - 3] ^ words[n - 8] ^ words[n - 14] ^ words[n - 16];
        words[n] = mixed << 1 | mixed >> 31;
    }
    for (int n = 0; n < 80; n++) {
        uint32_t f, k;
        if (n < 20) f = (b & c) | (~b & d), k = 0x5a827999;
        else if (n < 40) f = b ^ c ^ d, k = 0x6ed9eba1;
        else if (n < 60) f = (b & c) | (b & d) | (c & d), k = 0x8f1bbcdc;
        else f = b ^ c ^ d, k = 0xca62c1d6;
        uint32_t next = (a << 5 | a >> 27) + f + e + k + words[n];
        e = d, d = c, c = b << 30 | b >> 2, b = a, a = next;
    }
    sha->state[0] += a, sha->state[1] += b, sha->state[2] += c, sha->state[3] += d, sha->state[4] += e;
}

static void kinetic_sha1_add(kinetic_sha1 *sha, const void *from, size_t length) {
    const uint8_t *bytes = from;
    for (size_t n = 0; n < length; n++) {
        sha->block[sha->length++ % 64] = bytes[n];
        if (sha->length % 64 == 0) kinetic_sha1_block(sha);
    }
}

static void kinetic_sha1_begin(kinetic_sha1 *sha) {
    *sha = (kinetic_sha1){.state = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0}};
}

static void kinetic_sha1_end(kinetic_sha1 *sha, uint8_t to[20]) {
    uint64_t bits = sha->length * 8;
    uint8_t length[8], first = 0x80, zero = 0;
    for (int n = 0; n < 8; n++) length[n] = (uint8_t)(bits >> (56 - 8 * n));
    kinetic_sha1_add(sha, &first, 1);
    while (sha->length % 64 != 56) kinetic_sha1_add(sha, &zero, 1);
    kinetic_sha1_add(sha, length, 8);
    for (int n = 0; n < 20; n++) to[n] = (uint8_t)(sha->state[n / 4] >> (24 - 8 * (n % 4)));
}

/* HMAC-SHA1 over the command's length, as 4 bytes, and the command. */
static void kinetic_sign(const char *key, const uint8_t *command, uint32_t length, uint8_t to[20]) {
    uint8_t pad[64], inner[20], head[4] = {(uint8_t)(length >> 24), (uint8_t)(length >> 16), (uint8_t)(length >> 8), (uint8_t)length};
    size_t key_length = strlen(key);
    kinetic_sha1 sha;
    for (int outer = 0; outer < 2; outer++) {
        for (size_t n = 0; n < 64; n++) pad[n] = (uint8_t)((n < key_length ? key[n] : 0) ^ (outer ? 0x5c : 0x36));
        kinetic_sha1_begin(&sha);
        kinetic_sha1_add(&sha, pad, 64);
        if (outer) {
            kinetic_sha1_add(&sha, inner, 20);
        } else {
            kinetic_sha1_add(&sha, head, 4);
            kinetic_sha1_add(&sha, command, length);
        }
        kinetic_sha1_end(&sha, outer ? to : inner);
    }
}

/* ---- Messages: fields with a number, of integers or bytes ---- */

typedef struct {
    uint8_t *bytes;
    size_t length;
} kinetic_message;

static void kinetic_integer(kinetic_message *to, uint64_t value) {
    for (; value > 127; value >>= 7) to->bytes[to->length++] = (uint8_t)(value | 128);
    to->bytes[to->length++] = (uint8_t)value;
}

static void kinetic_number(kinetic_message *to, unsigned field, uint64_t value) {
    kinetic_integer(to, field << 3);
    kinetic_integer(to, value);
}

static void kinetic_bytes(kinetic_message *to, unsigned field, const void *from, size_t length) {
    kinetic_integer(to, field << 3 | 2);
    kinetic_integer(to, length);
    if (length) memcpy(to->bytes + to->length, from, length);
    to->length += length;
}

/* Reads an integer; whether there was one. */
static int kinetic_read_integer(const uint8_t **at, const uint8_t *end, uint64_t *value) {
    *value = 0;
    for (unsigned shift = 0; *at < end && shift < 64; shift += 7) {
        uint8_t byte = *(*at)++;
        *value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) return 1;
    }
    return 0;
}

/* Finds a field; whether it is there. Its number is in `value`; its bytes are from `bytes` on, and `value` of them. */
static int kinetic_find(const uint8_t *from, size_t length, unsigned field, const uint8_t **bytes, uint64_t *value) {
    const uint8_t *end = from + length;
    for (uint64_t tag; from < end && kinetic_read_integer(&from, end, &tag);) {
        if ((tag & 7) == 1 || (tag & 7) == 5) {
            size_t fixed = (tag & 7) == 1 ? 8 : 4;
            if ((size_t)(end - from) < fixed) return 0;
            from += fixed;
            continue;
        }
        if (!kinetic_read_integer(&from, end, value)) return 0;
        *bytes = from;
        if ((tag & 7) == 2) {
            if (*value > (uint64_t)(end - from)) return 0;
            from += *value;
        }
        if (tag >> 3 == field) return 1;
    }
    return 0;
}

/* ---- The connection ---- */

static struct {
    int fd;
    uint64_t identity, cluster, connection, sequence;
    const char *key;
    uint8_t message[KINETIC_MESSAGE], command[KINETIC_MESSAGE], part[KINETIC_MESSAGE];
    /* What the last answer has: the command, and how long it is. */
    const uint8_t *answer;
    uint64_t answer_length;
} kinetic;

static int kinetic_send(const void *from, size_t length) {
    for (const uint8_t *at = from; length > 0;) {
        ssize_t sent = send(kinetic.fd, at, length, MSG_NOSIGNAL);
        if (sent <= 0) return -KINETIC_ENDED;
        at += sent, length -= (size_t)sent;
    }
    return 0;
}

static int kinetic_receive(void *to, size_t length) {
    for (uint8_t *at = to; length > 0;) {
        ssize_t received = recv(kinetic.fd, at, length, 0);
        if (received <= 0) return -KINETIC_ENDED;
        at += received, length -= (size_t)received;
    }
    return 0;
}

/* Reads an answer and up to `room` bytes of its value. The length of the value, or the negative of its status. */
static long kinetic_answer(void *to, size_t room) {
    uint8_t head[9], rest[4096];
    if (kinetic_receive(head, 9) || head[0] != 'F') return -KINETIC_ENDED;
    uint32_t length = (uint32_t)head[1] << 24 | (uint32_t)head[2] << 16 | (uint32_t)head[3] << 8 | head[4];
    uint32_t value = (uint32_t)head[5] << 24 | (uint32_t)head[6] << 16 | (uint32_t)head[7] << 8 | head[8];
    if (length > KINETIC_MESSAGE || kinetic_receive(kinetic.message, length)) return -KINETIC_ENDED;
    uint32_t kept = value < room ? value : (uint32_t)room;
    if (kinetic_receive(to, kept)) return -KINETIC_ENDED;
    for (uint32_t left = value - kept; left > 0;) {
        uint32_t some = left < sizeof rest ? left : (uint32_t)sizeof rest;
        if (kinetic_receive(rest, some)) return -KINETIC_ENDED;
        left -= some;
    }
    const uint8_t *status;
    uint64_t status_length, code;
    if (!kinetic_find(kinetic.message, length, 7, &kinetic.answer, &kinetic.answer_length)) return -KINETIC_ENDED;
    if (!kinetic_find(kinetic.answer, kinetic.answer_length, 3, &status, &status_length)) return -KINETIC_ENDED;
    if (!kinetic_find(status, status_length, 1, &status, &code)) return -KINETIC_ENDED;
    return code == 1 ? (long)value : -(long)code;
}

/* Takes the connection, and the drive's greeting. */
static int kinetic_open(void) {
    const char *fd = getenv("KINETIC_FD"), *identity = getenv("KINETIC_IDENTITY");
    kinetic.key = getenv("KINETIC_KEY");
    if (!fd || !identity || !kinetic.key) return -KINETIC_ENDED;
    kinetic.fd = atoi(fd);
    kinetic.identity = strtoull(identity, 0, 10);
    long greeted = kinetic_answer(0, 0);
    const uint8_t *header, *number;
    uint64_t length;
    if (greeted < 0) return (int)greeted;
    if (!kinetic_find(kinetic.answer, kinetic.answer_length, 1, &header, &length)) return -KINETIC_ENDED;
    kinetic_find(header, length, 1, &number, &kinetic.cluster);
    if (!kinetic_find(header, length, 3, &number, &kinetic.connection)) kinetic.connection = 0;
    return 0;
}

/* Sends a request about a key, and reads its answer. */
static long kinetic_call(unsigned kind, const kinetic_message *entry, const void *value, size_t length, void *to, size_t room) {
    uint8_t small[128], hmac[20], head[9] = {'F'};
    kinetic_message header = {small, 0}, body = {kinetic.message, 0}, command = {kinetic.command, 0}, message = {kinetic.message, 0};
    kinetic_number(&header, 1, kinetic.cluster);
    kinetic_number(&header, 3, kinetic.connection);
    kinetic_number(&header, 4, ++kinetic.sequence);
    kinetic_number(&header, 7, kind);
    kinetic_bytes(&body, 1, entry->bytes, entry->length);
    kinetic_bytes(&command, 1, header.bytes, header.length);
    kinetic_bytes(&command, 2, body.bytes, body.length);
    kinetic_sign(kinetic.key, command.bytes, (uint32_t)command.length, hmac);
    header.length = 0;
    kinetic_number(&header, 1, kinetic.identity);
    kinetic_bytes(&header, 2, hmac, 20);
    kinetic_number(&message, 4, 1);
    kinetic_bytes(&message, 5, header.bytes, header.length);
    kinetic_bytes(&message, 7, command.bytes, command.length);
    for (int n = 0; n < 4; n++) {
        head[1 + n] = (uint8_t)(message.length >> (24 - 8 * n));
        head[5 + n] = (uint8_t)(length >> (24 - 8 * n));
    }
    if (kinetic_send(head, 9) || kinetic_send(message.bytes, message.length) || kinetic_send(value, length)) return -KINETIC_ENDED;
    return kinetic_answer(to, room);
}

/* A key as the body of a request; longer ones than the protocol has would not fit. */
static kinetic_message kinetic_entry(const void *key, size_t length) {
    kinetic_message entry = {kinetic.part, 0};
    kinetic_bytes(&entry, 3, key, length < 8192 ? length : 8192);
    return entry;
}

/* ---- What programs call ---- */

/* Copies the value of a key, or its first `room` bytes, to `to`. The value's length. */
static inline long kinetic_get(const void *key, size_t key_length, void *to, size_t room) {
    kinetic_message entry = kinetic_entry(key, key_length);
    return kinetic_call(2, &entry, 0, 0, to, room);
}

/* Stores a value, whatever version the key has. It is visible then, and durable as WRITEBACK is. */
static inline long kinetic_put(const void *key, size_t key_length, const void *value, size_t length) {
    kinetic_message entry = kinetic_entry(key, key_length);
    kinetic_number(&entry, 8, 1);
    kinetic_number(&entry, 9, 2);
    return kinetic_call(4, &entry, value, length, 0, 0);
}

/* Deletes a key, whatever version it has. */
static inline long kinetic_delete(const void *key, size_t key_length) {
    kinetic_message entry = kinetic_entry(key, key_length);
    kinetic_number(&entry, 8, 1);
    kinetic_number(&entry, 9, 2);
    return kinetic_call(6, &entry, 0, 0, 0, 0);
}

/* Copies the first key after `after`, or its first `room` bytes, to `to`. The key's length. */
static inline long kinetic_next(const void *after, size_t after_length, void *to, size_t room) {
    kinetic_message entry = kinetic_entry(after, after_length);
    kinetic_number(&entry, 7, 1);
    long found = kinetic_call(8, &entry, 0, 0, 0, 0);
    const uint8_t *at = kinetic.answer;
    uint64_t length = kinetic.answer_length;
    if (found < 0) return found;
    if (!kinetic_find(at, length, 2, &at, &length) || !kinetic_find(at, length, 1, &at, &length) || !kinetic_find(at, length, 3, &at, &length))
        return -KINETIC_ENDED;
    memcpy(to, at, length < room ? length : room);
    return (long)length;
}

/* Appends to the output. Whether all was taken. */
static inline int kinetic_emit(const void *from, size_t length) {
    for (const uint8_t *at = from; length > 0;) {
        ssize_t written = write(KINETIC_OUTPUT, at, length);
        if (written <= 0) return 0;
        at += written, length -= (size_t)written;
    }
    return 1;
}

#endif
