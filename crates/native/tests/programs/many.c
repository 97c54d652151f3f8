// Many programs in one: the first argument says which. What it prints is what a test expects.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <netinet/in.h>
#include <unistd.h>

extern char **environ;

static int is(const char *given, const char *wanted) { return strcmp(given, wanted) == 0; }

// Prints a name, and the result of a call: its error where it failed.
static void tell(const char *name, long result) {
    printf("%s: %s\n", name, result < 0 ? strerrorname_np(errno) : "done");
    fflush(stdout);
}

static void attempts(void) {
    int descriptors[2];
    char byte = 0;
    tell("open", open("/etc/passwd", O_RDONLY));
    tell("open /", open("/", O_RDONLY | O_DIRECTORY));
    tell("create", open("/tmp/native-program-was-here", O_WRONLY | O_CREAT, 0600));
    tell("mkdir", mkdir("/native-program-was-here", 0700));
    tell("chdir", chdir("/proc"));
    tell("chroot", chroot("/"));
    tell("mount", mount("none", "/", "proc", 0, 0));
    tell("socket inet", socket(AF_INET, SOCK_STREAM, 0));
    tell("socket unix", socket(AF_UNIX, SOCK_STREAM, 0));
    tell("socketpair", socketpair(AF_UNIX, SOCK_STREAM, 0, descriptors));
    tell("pipe", pipe(descriptors));
    tell("memfd", memfd_create("x", 0));
    tell("fork", fork());
    tell("vfork", syscall(SYS_vfork));
    tell("clone", syscall(SYS_clone, CLONE_VM | CLONE_THREAD | CLONE_SIGHAND, 0, 0, 0, 0));
    tell("unshare", unshare(CLONE_NEWUSER));
    tell("execve", execve("/bin/sh", (char *[]){"sh", 0}, environ));
    tell("execveat", syscall(SYS_execveat, 1, "", (char *[]){"sh", 0}, environ, AT_EMPTY_PATH));
    tell("ptrace", ptrace(PTRACE_TRACEME, 0, 0, 0));
    tell("kill first", kill(1, SIGKILL));
    tell("kill all", kill(-1, SIGKILL));
    tell("setrlimit", setrlimit(RLIMIT_AS, &(struct rlimit){RLIM_INFINITY, RLIM_INFINITY}));
    tell("setuid", setuid(0));
    tell("bpf", syscall(SYS_bpf, 0, 0, 0));
    tell("keyctl", syscall(SYS_keyctl, 0, 0, 0));
    tell("io_uring", syscall(SYS_io_uring_setup, 1, 0));
    tell("perf", syscall(SYS_perf_event_open, 0, 0, 0, 0, 0));
    tell("dup", dup(1));
    tell("sendmsg", sendmsg(3, &(struct msghdr){0}, 0));
    tell("sendto", sendto(3, &byte, 1, 0, (struct sockaddr *)&(struct sockaddr_un){.sun_family = AF_UNIX}, 2));
    tell("send out of band", send(3, &byte, 1, MSG_OOB));
    tell("receive out of band", recv(3, &byte, 1, MSG_OOB));
    tell("futex with priority", syscall(SYS_futex, descriptors, 6, 0, 0, 0, 0)); // FUTEX_LOCK_PI
    tell("ioctl", syscall(SYS_ioctl, 0, 0x5412, &byte)); // TIOCSTI
    tell("nice", setpriority(PRIO_PROCESS, 0, -5));
}

int main(int count, char **arguments) {
    if (count < 2) return 99;
    const char *which = arguments[1];
    if (is(which, "hello")) {
        printf("%s:", arguments[0]);
        for (int n = 2; n < count; n++) printf(" %s", arguments[n]);
        fprintf(stderr, "to stderr\n");
        if (write(4, "output", 6) != 6) return 98;
        return 7;
    }
    if (is(which, "environment")) {
        for (char **one = environ; *one; one++) puts(*one);
        return 0;
    }
    if (is(which, "self")) {
        struct stat root;
        char host[65] = "";
        gethostname(host, sizeof host);
        printf("process %d of %d, user %d, host %s, root %d", getpid(), getppid(), getuid(), host, stat("/", &root));
        return 0;
    }
    if (is(which, "descriptors")) {
        for (int fd = 0; fd < 1 << 16; fd++)
            if (fcntl(fd, F_GETFD) >= 0) printf("%d ", fd);
        return 0;
    }
    if (is(which, "input")) {
        char byte;
        return (int)read(0, &byte, 1);
    }
    if (is(which, "socket")) {
        char bytes[64];
        ssize_t length = recv(3, bytes, sizeof bytes, 0);
        return length > 0 && send(3, bytes, (size_t)length, MSG_NOSIGNAL) == length ? 0 : 1;
    }
    if (is(which, "crash")) return *(volatile int *)8;
    if (is(which, "abort")) abort();
    if (is(which, "signal")) return raise(atoi(arguments[2]));
    if (is(which, "loop"))
        for (;;) __asm__ volatile("");
    if (is(which, "sleep"))
        for (;;) pause();
    if (is(which, "ready")) {
        // A byte says that it has begun what the next argument names.
        int ignore = is(arguments[2], "ignore");
        for (int n = 1; ignore && n < 65; n++) signal(n, SIG_IGN);
        if (write(3, "r", 1) != 1) return 1;
        while (!ignore) pause();
        for (;;) __asm__ volatile("");
    }
    if (is(which, "stop")) return raise(SIGSTOP);
    if (is(which, "memory")) {
        size_t taken = 0;
        for (char *more; (more = malloc(1 << 20)); taken++) memset(more, 1, 1 << 20);
        printf("%zu", taken);
        return 0;
    }
    if (is(which, "stack")) {
        volatile char *deep = alloca(1 << 30);
        deep[0] = 1;
        return deep[0];
    }
    if (is(which, "forks"))
        for (int n = 0;; n++) {
            pid_t child = fork();
            if (child == 0) pause();
            if (child < 0 && n > 100000) {
                printf("%s", strerrorname_np(errno));
                return 0;
            }
        }
    if (is(which, "flood")) {
        char bytes[4096];
        memset(bytes, 'x', sizeof bytes);
        for (int fd = atoi(arguments[2]);;)
            if (write(fd, bytes, sizeof bytes) < 0) return 1;
    }
    if (is(which, "errors")) {
        for (int n = 0; n < 100000; n++) fputs("a line of standard error\n", stderr);
        return 0;
    }
    if (is(which, "attempts")) {
        attempts();
        return 0;
    }
    return 97;
}
