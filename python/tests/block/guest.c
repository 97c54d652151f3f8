/* What the guest runs: checks of a block device, and vendor commands by pass-through. Each check prints one line.
 *
 * guest discover CONTROLLER          the subsystem, address and port of the first discovery entry
 * guest log CONTROLLER PAGE LENGTH   the bytes of a log page, in hexadecimal
 * guest verify DEVICE WRITES SEED    random writes and reads of two processes, compared with what was written
 * guest zeroes DEVICE                zeros and discards, compared
 * guest exec DEVICE NAMESPACE        EXEC of sums (CRC-32C) over places that were written before
 * guest io DEVICE NAMESPACE          compare, verify, and commands that must be refused
 * guest scsi-exec DEVICE FILE        EXEC of CRC-32C over the extents of a file, by SG_IO
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <linux/nvme_ioctl.h>
#include <scsi/sg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void fail(const char *what)
{
	printf("FAILED %s: %s\n", what, strerror(errno));
	exit(1);
}

static int must_open(const char *path, int flags)
{
	int fd = open(path, flags);
	if (fd < 0)
		fail(path);
	return fd;
}

static uint64_t state;

static uint64_t dice(uint64_t below)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state % below;
}

static uint32_t crc32c(const uint8_t *bytes, size_t length)
{
	uint32_t sum = ~0u;
	for (size_t i = 0; i < length; i++) {
		sum ^= bytes[i];
		for (int bit = 0; bit < 8; bit++)
			sum = sum >> 1 ^ (sum & 1 ? 0x82f63b78 : 0);
	}
	return ~sum;
}

static void *aligned(size_t length)
{
	void *memory = NULL;
	if (posix_memalign(&memory, 4096, length))
		fail("memory");
	return memory;
}

/* The content of 4 KiB block number `block` in its `version`. */
static void fill(uint64_t *to, uint64_t block, uint64_t version)
{
	for (int i = 0; i < 512; i++)
		to[i] = version ? (block << 40 | version << 16 | i) * 0x9e3779b97f4a7c15 : 0;
}

enum { AREA = 2048, LONGEST = 256 };

/* Writes and reads of 1 to 256 blocks in an area of this process, with O_DIRECT. */
static void verify_area(const char *path, int area, long writes, uint64_t seed)
{
	int fd = must_open(path, O_RDWR | O_DIRECT);
	static uint64_t versions[AREA];
	uint64_t *data = aligned(LONGEST * 4096), expected[512];
	state = seed * 2 + area + 1;
	for (long write = 1; write <= writes; write++) {
		uint64_t length = dice(4) ? 1 + dice(8) : 1 + dice(LONGEST), from = dice(AREA - length);
		uint64_t at = ((uint64_t)area * AREA + from) * 4096;
		for (uint64_t i = 0; i < length; i++) {
			versions[from + i] = write;
			fill(data + 512 * i, from + i, write);
		}
		if (pwrite(fd, data, length * 4096, at) != (ssize_t)(length * 4096))
			fail("write");
		if (write % 64 == 0 && fdatasync(fd))
			fail("flush");
		length = 1 + dice(64), from = dice(AREA - length), at = ((uint64_t)area * AREA + from) * 4096;
		if (pread(fd, data, length * 4096, at) != (ssize_t)(length * 4096))
			fail("read");
		for (uint64_t i = 0; i < length; i++) {
			if (!versions[from + i])
				continue;
			fill(expected, from + i, versions[from + i]);
			if (memcmp(expected, data + 512 * i, 4096)) {
				printf("FAILED block %lu of area %d is not version %lu\n", from + i, area, versions[from + i]);
				exit(1);
			}
		}
	}
	for (uint64_t from = 0; from < AREA; from++) {
		if (pread(fd, data, 4096, ((uint64_t)area * AREA + from) * 4096) != 4096)
			fail("read");
		fill(expected, from, versions[from]);
		if (versions[from] && memcmp(expected, data, 4096)) {
			printf("FAILED at the end: block %lu of area %d\n", from, area);
			exit(1);
		}
	}
	exit(0);
}

static int verify(const char *path, long writes, uint64_t seed)
{
	for (int area = 0; area < 2; area++)
		if (fork() == 0)
			verify_area(path, area, writes, seed);
	for (int area = 0; area < 2; area++) {
		int status;
		if (wait(&status) < 0 || status)
			return 1;
	}
	printf("OK verify %ld\n", 2 * writes);
	return 0;
}

static int zeroes(const char *path)
{
	int fd = must_open(path, O_RDWR | O_DIRECT);
	uint8_t *data = aligned(1 << 20), *zero = calloc(1, 1 << 20);
	uint64_t ranges[2][2] = {{65536, 131072}, {524288, 262144}};
	memset(data, 0x5a, 1 << 20);
	if (pwrite(fd, data, 1 << 20, 0) != 1 << 20 || ioctl(fd, BLKZEROOUT, ranges[0]) || ioctl(fd, BLKDISCARD, ranges[1]))
		fail("zeroes");
	if (pread(fd, data, 1 << 20, 0) != 1 << 20)
		fail("read");
	for (int i = 0; i < 2; i++)
		if (memcmp(data + ranges[i][0], zero, ranges[i][1])) {
			printf("FAILED range %d is not zero\n", i);
			return 1;
		}
	if (data[65535] != 0x5a || data[65536 + 131072] != 0x5a || data[524287] != 0x5a) {
		printf("FAILED bytes around the ranges changed\n");
		return 1;
	}
	printf("OK zeroes\n");
	return 0;
}

static int discover(const char *path)
{
	uint8_t page[2048] = {0};
	struct nvme_admin_cmd command = {.opcode = 0x02, .addr = (uintptr_t)page, .data_len = sizeof(page)};
	command.cdw10 = 0x70 | (sizeof(page) / 4 - 1) << 16;
	int status = ioctl(must_open(path, O_RDWR), NVME_IOCTL_ADMIN_CMD, &command);
	if (status || page[8] != 1 || page[1024] != 3) {
		printf("FAILED discovery: status %x\n", status);
		return 1;
	}
	page[1024 + 256 + 255] = page[1024 + 63] = page[1024 + 512 + 255] = 0;
	printf("%s %.20s %.6s\n", page + 1024 + 256, strtok((char *)page + 1024 + 512, " "), strtok((char *)page + 1024 + 32, " "));
	return 0;
}

static int log_page(const char *path, int number, uint32_t length)
{
	uint8_t *page = aligned(length);
	struct nvme_admin_cmd command = {.opcode = 0x02, .nsid = ~0u, .addr = (uintptr_t)page, .data_len = length};
	command.cdw10 = number | (length / 4 - 1) << 16;
	int status = ioctl(must_open(path, O_RDWR), NVME_IOCTL_ADMIN_CMD, &command);
	if (status) {
		printf("FAILED log page %x: status %x\n", number, status);
		return 1;
	}
	printf("OK log %02x ", number);
	for (uint32_t i = 0; i < length && i < 64; i++)
		printf("%02x", page[i]);
	printf("\n");
	return 0;
}

static int io_command(int fd, uint8_t opcode, uint32_t namespace, void *data, uint32_t length, const uint32_t words[4], uint32_t *result)
{
	struct nvme_passthru_cmd command = {.opcode = opcode, .nsid = namespace, .addr = (uintptr_t)data, .data_len = length, .timeout_ms = 20000};
	command.cdw10 = words[0];
	command.cdw11 = words[1];
	command.cdw12 = words[2];
	command.cdw13 = words[3];
	int status = ioctl(fd, NVME_IOCTL_IO_CMD, &command);
	if (status < 0)
		fail("pass-through");
	*result = command.result;
	return status & 0x7ff;
}

static int exec(const char *path, uint32_t namespace)
{
	enum { PLACES = 200 };
	int fd = must_open(path, O_RDWR | O_DIRECT);
	size_t size = 8 << 20;
	uint8_t *content = aligned(size);
	uint64_t *places = aligned(PLACES * 16);
	uint32_t *sums = aligned(PLACES * 4), result, expected[PLACES];
	state = 77;
	for (size_t i = 0; i < size; i += 8)
		*(uint64_t *)(content + i) = dice(~0ull);
	if (pwrite(fd, content, size, 0) != (ssize_t)size)
		fail("write");
	for (int i = 0; i < PLACES; i++) {
		places[2 * i] = dice(size / 512 - 64) * 512;
		places[2 * i + 1] = (1 + dice(64)) * 512;
		expected[i] = crc32c(content + places[2 * i], places[2 * i + 1]);
	}
	/* A descriptor that the capsule takes, and one that needs a transfer, are both below; 16 bytes for each place. */
	for (int count = 1; count <= PLACES; count += PLACES - 1) {
		int status = io_command(fd, 0xc1, namespace, places, count * 16, (uint32_t[]){42 + count, count * 16, 0, 0}, &result);
		if (status || result != (uint32_t)count * 4) {
			printf("FAILED exec out: status %x, result of %u bytes\n", status, result);
			return 1;
		}
		memset(sums, 0, PLACES * 4);
		/* In two parts where there is more than one sum. */
		uint32_t first = count > 1 ? 100 : 4;
		status = io_command(fd, 0xc2, namespace, sums, first, (uint32_t[]){42 + count, first, 0, count == 1}, &result);
		if (!status && count > 1)
			status = io_command(fd, 0xc2, namespace, sums + 25, count * 4 - 100, (uint32_t[]){42 + count, count * 4 - 100, 100, 1}, &result);
		if (status || result != (uint32_t)count * 4 || memcmp(sums, expected, count * 4)) {
			printf("FAILED exec in: status %x, result of %u bytes, %08x for %08x\n", status, result, sums[0], expected[0]);
			return 1;
		}
		status = io_command(fd, 0xc2, namespace, sums, 4, (uint32_t[]){42 + count, 4, 0, 0}, &result);
		if (status != 0x701) {
			printf("FAILED a forgotten result is there: status %x\n", status);
			return 1;
		}
	}
	if (io_command(fd, 0xc1, namespace, places, 12, (uint32_t[]){1, 12, 0, 0}, &result) == 0) {
		printf("FAILED a descriptor that is none was run\n");
		return 1;
	}
	printf("OK exec %d\n", PLACES);
	return 0;
}

static int io(const char *path, uint32_t namespace)
{
	int fd = must_open(path, O_RDWR | O_DIRECT), wrong = 0;
	uint8_t *data = aligned(65536);
	uint32_t result;
	memset(data, 0x33, 65536);
	/* Write of 128 blocks at 1000 with force unit access, compare, verify, compare of what differs. */
	struct {
		uint8_t opcode;
		uint32_t length, words[4];
		int status;
	} all[] = {
		{0x01, 65536, {1000, 0, 127 | 1u << 30, 0}, 0},
		{0x05, 65536, {1000, 0, 127, 0}, 0},
		{0x0c, 0, {0, 0, 65535, 0}, 0},
		{0x05, 512, {900, 0, 0, 0}, 0x285},
		{0x08, 0, {1000, 0, 127 | 1u << 25, 0}, 0},
		{0x05, 512, {1000, 0, 0, 0}, 0x285},
		{0x02, 512, {~0u, ~0u, 0, 0}, 0x80},
		{0x02, 1024, {0, 0, 0, 0}, 0x0f},
		{0x04, 0, {0, 0, 0, 0}, 0x01},
		{0x99, 512, {0, 0, 0, 0}, 0x01},
		{0x00, 0, {0, 0, 0, 0}, 0},
	};
	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
		int status = io_command(fd, all[i].opcode, namespace, all[i].length ? data : NULL, all[i].length, all[i].words, &result);
		if (status != all[i].status) {
			printf("FAILED command %zu, opcode %x: status %x, not %x\n", i, all[i].opcode, status, all[i].status);
			wrong = 1;
		}
	}
	if (!wrong)
		printf("OK io\n");
	return wrong;
}

/* Sends a SCSI command; the status byte. `sense` takes 96 bytes. */
static int scsi_command(int fd, uint8_t *cdb, void *data, uint32_t length, int direction, uint8_t *sense)
{
	sg_io_hdr_t call = {.interface_id = 'S', .cmdp = cdb, .cmd_len = 16, .dxferp = data, .dxfer_len = length, .dxfer_direction = direction};
	call.sbp = sense;
	call.mx_sb_len = 96;
	call.timeout = 30000;
	memset(sense, 0, 96);
	if (ioctl(fd, SG_IO, &call))
		fail("SG_IO");
	if (call.host_status || (call.driver_status & 7)) {
		printf("FAILED SG_IO: host status %x, driver status %x\n", call.host_status, call.driver_status);
		exit(1);
	}
	return call.status;
}

/* Whether sense data, of the fixed or the descriptor format, has this key and additional code. */
static int is_sense(const uint8_t *sense, uint8_t key, uint8_t code)
{
	if ((sense[0] & 0x7f) == 0x70)
		return (sense[2] & 15) == key && sense[12] == code;
	return (sense[0] & 0x7f) == 0x72 && (sense[1] & 15) == key && sense[2] == code;
}

static void exec_cdb(uint8_t *cdb, uint8_t code, int flag, uint32_t list, uint32_t length)
{
	memset(cdb, 0, 16);
	cdb[0] = code;
	cdb[1] = flag;
	for (int i = 0; i < 4; i++) {
		cdb[2 + i] = list >> (24 - 8 * i);
		cdb[10 + i] = length >> (24 - 8 * i);
	}
}

/* A result (docs/internals/formats/exec-descriptor.md) with one sum as its only item. */
static int is_sum(const uint8_t *result, uint32_t sum)
{
	const uint8_t *item = result + 24;
	uint32_t items;
	memcpy(&items, result + 16, 4);
	return !memcmp(result, "OASR\1\0", 6) && items == 1 && item[0] == 0 &&
	       ((uint32_t)item[16] << 24 | item[17] << 16 | item[18] << 8 | item[19]) == sum;
}

/* CRC-32C of a file by where it lies on the disk, which it is on. A result in sense data does not come this far: QEMU
 * makes sense data of its own, of the key and the additional code. */
static int scsi_exec(const char *path, const char *file)
{
	enum { MOST = 256 };
	int fd = must_open(path, O_RDWR), of = must_open(file, O_RDONLY);
	static struct {
		struct fiemap map;
		struct fiemap_extent extents[MOST];
	} asked;
	asked.map.fm_length = ~0ull;
	asked.map.fm_flags = FIEMAP_FLAG_SYNC;
	asked.map.fm_extent_count = MOST;
	off_t size = lseek(of, 0, SEEK_END);
	if (ioctl(of, FS_IOC_FIEMAP, &asked.map))
		fail("FIEMAP");
	uint32_t extents = asked.map.fm_mapped_extents;
	uint8_t *content = malloc(size), sense[96], cdb[16];
	if (pread(of, content, size, 0) != size)
		fail("read");
	uint32_t expected = crc32c(content, size);
	if (!extents || extents == MOST || !(asked.extents[extents - 1].fe_flags & FIEMAP_EXTENT_LAST)) {
		printf("FAILED %u extents\n", extents);
		return 1;
	}
	uint32_t length = 56 + 40 + 16 * extents;
	uint8_t *descriptor = calloc(1, length);
	/* Magic, version 1 and operation 1, length, sum, flags, arguments, inputs. */
	uint32_t head[7] = {0x4453414f, 1 | 1 << 16, length, 0, 0, 0, 1};
	memcpy(descriptor, head, 28);
	memcpy(descriptor + 56, &size, 8);
	memcpy(descriptor + 56 + 32, &extents, 4);
	for (uint32_t i = 0; i < extents; i++) {
		uint64_t place[2] = {asked.extents[i].fe_physical, asked.extents[i].fe_length};
		memcpy(descriptor + 96 + 16 * i, place, 16);
	}
	uint32_t sum = crc32c(descriptor, length);
	memcpy(descriptor + 12, &sum, 4);

	exec_cdb(cdb, 0xc0, 0, 7, length);
	int status = scsi_command(fd, cdb, descriptor, length, SG_DXFER_TO_DEV, sense);
	if (status) {
		printf("FAILED EXEC OUT: status %x, sense %02x %02x %02x %02x\n", status, sense[0], sense[1], sense[2], sense[3]);
		return 1;
	}
	uint8_t kept[256] = {0};
	exec_cdb(cdb, 0xc1, 1, 7, sizeof(kept));
	status = scsi_command(fd, cdb, kept, sizeof(kept), SG_DXFER_FROM_DEV, sense);
	if (status || !is_sum(kept + 8, expected)) {
		printf("FAILED EXEC IN: status %x, not %08x\n", status, expected);
		return 1;
	}
	exec_cdb(cdb, 0xc1, 1, 7, sizeof(kept));
	if (scsi_command(fd, cdb, kept, sizeof(kept), SG_DXFER_FROM_DEV, sense) != 2 || !is_sense(sense, 5, 0x24)) {
		printf("FAILED a forgotten result is there\n");
		return 1;
	}
	descriptor[60] ^= 1;
	exec_cdb(cdb, 0xc0, 0, 9, length);
	if (scsi_command(fd, cdb, descriptor, length, SG_DXFER_TO_DEV, sense) != 2 || !is_sense(sense, 5, 0x26)) {
		printf("FAILED a damaged descriptor was run\n");
		return 1;
	}
	printf("OK scsi-exec %u extents %08x\n", extents, expected);
	return 0;
}

int main(int count, char **words)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (count == 3 && !strcmp(words[1], "discover"))
		return discover(words[2]);
	if (count == 3 && !strcmp(words[1], "zeroes"))
		return zeroes(words[2]);
	if (count == 4 && !strcmp(words[1], "exec"))
		return exec(words[2], atoi(words[3]));
	if (count == 4 && !strcmp(words[1], "scsi-exec"))
		return scsi_exec(words[2], words[3]);
	if (count == 4 && !strcmp(words[1], "io"))
		return io(words[2], atoi(words[3]));
	if (count == 5 && !strcmp(words[1], "log"))
		return log_page(words[2], strtol(words[3], NULL, 16), atoi(words[4]));
	if (count == 5 && !strcmp(words[1], "verify"))
		return verify(words[2], atol(words[3]), atoi(words[4]));
	fprintf(stderr, "guest: unknown call\n");
	return 2;
}
