/*
 * Computing in block storage, from C. Link with -loas (liboas.so).
 *
 * Calls block, and may come from several threads. A call returns 0, or a negative errno:
 *   EINVAL       the call is wrong, or a pattern
 *   ENOENT       a file, a target or a logical unit does not exist
 *   EBUSY        a file changes all the time
 *   EBADMSG      damage: of the medium, or of an answer
 *   EAGAIN       a target, or the system, can't now
 *   ENOSPC       no room: in the output, in memory, in time
 *   EOPNOTSUPP   the target can't, and doing it here is not wanted
 *   EIO          a defect of this library
 * oas_error() then says more.
 *
 * What the target can't do is done in this process, unless OAS_NOT_HERE is given. `ran`, where it is not NULL, becomes
 * OAS_THERE or OAS_HERE; oas_reason() then says why it was here.
 */
#ifndef OAS_H
#define OAS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct oas_session oas_session;

/* Flags of oas_open. */
#define OAS_NOT_HERE 1u

/* Where something was computed. */
#define OAS_THERE 0
#define OAS_HERE 1

/* Digests. */
#define OAS_CRC32C 1
#define OAS_CRC32 2
#define OAS_CRC64_NVME 3
#define OAS_MD5 16
#define OAS_SHA256 17
#define OAS_BLAKE3 18
#define OAS_HIGHWAY256 19

/* The longest digest in bytes. */
#define OAS_MOST_DIGEST 32

/* Flags of searches. */
#define OAS_FIXED 1u
#define OAS_IGNORE_CASE 2u
#define OAS_BYTES 4u

typedef struct {
    uint64_t lines, words, characters, bytes;
} oas_counts;

/* A session with the target iscsi://[user%secret@]HOST[:PORT]/IQN/LUN or /dev/NODE; NULL for none. */
int oas_open(const char *target, uint32_t flags, oas_session **session);
void oas_close(oas_session *session);

/* Of the last call of this thread. They are valid until its next call. */
const char *oas_error(void);
const char *oas_reason(void);

/* The digest of a file, which `digest` has room for (OAS_MOST_DIGEST bytes); its length. `key` has 32 bytes, or is NULL. */
int oas_sum(oas_session *session, const char *path, int algorithm, const uint8_t *key, uint8_t *digest, size_t *length, int *ran);

/* The digests of `count` files, one after the other, each OAS_MOST_DIGEST bytes from the one before; results[n] is 0 or a
 * negative errno for file n. */
int oas_sum_files(oas_session *session, const char *const *paths, size_t count, int algorithm, const uint8_t *key, uint8_t *digests,
                  int *results);

/* Whether the digests inside a file are right, in front of blocks of `block` bytes. `bad` becomes -1, or the number of the
 * first frame that is wrong. */
int oas_verify_framed(oas_session *session, const char *path, int algorithm, const uint8_t *key, uint64_t block, int64_t *bad, int *ran);

int oas_word_count(oas_session *session, const char *path, uint32_t flags, oas_counts *counts, int *ran);

/* How many matches a file has. */
int oas_count(oas_session *session, const char *path, const char *pattern, uint32_t flags, uint64_t *matches, int *ran);

/* Calls `found` for each match, in their order. Where it returns other than 0, the search ends with that value. */
typedef int (*oas_found)(void *context, uint64_t offset, const uint8_t *text, size_t length);
int oas_search(oas_session *session, const char *path, const char *pattern, uint32_t flags, oas_found found, void *context, int *ran);

/* Sorts the lines of files into a new file. */
int oas_sort(oas_session *session, const char *const *paths, size_t count, const char *output, int *ran);

#ifdef __cplusplus
}
#endif

#endif
