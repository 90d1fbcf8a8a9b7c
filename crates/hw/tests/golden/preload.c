/* Puts a test's kernel behind a program's netlink sockets: each becomes a UNIX socket that the test
 * listens on, and which first says which netlink protocol is meant. So the tools' requests are seen
 * for devices, drivers and kernel parts that this machine does not have, and no host is changed.
 * Built by the test, loaded with LD_PRELOAD; FAKE_KERNEL is where the test listens. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <linux/netlink.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define FILES 1024

static char faked[FILES];

static int is_faked(int fd) { return fd >= 0 && fd < FILES && faked[fd]; }

static void fill(void *to, socklen_t *length) {
    struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
    if (to && *length >= sizeof kernel)
        memcpy(to, &kernel, sizeof kernel);
    *length = sizeof kernel;
}

int socket(int family, int type, int protocol) {
    if (family != AF_NETLINK)
        return REAL(socket)(family, type, protocol);
    struct sockaddr_un there = {.sun_family = AF_UNIX};
    strncpy(there.sun_path, getenv("FAKE_KERNEL"), sizeof there.sun_path - 1);
    unsigned char number = protocol;
    int fd = REAL(socket)(AF_UNIX, SOCK_SEQPACKET | (type & SOCK_CLOEXEC), 0);
    if (fd < 0 || fd >= FILES || connect(fd, (struct sockaddr *)&there, sizeof there) ||
        send(fd, &number, 1, 0) != 1)
        abort();
    faked[fd] = 1;
    return fd;
}

int bind(int fd, const struct sockaddr *address, socklen_t length) {
    return is_faked(fd) ? 0 : REAL(bind)(fd, address, length);
}

int getsockname(int fd, struct sockaddr *address, socklen_t *length) {
    if (!is_faked(fd))
        return REAL(getsockname)(fd, address, length);
    fill(address, length);
    return 0;
}

int setsockopt(int fd, int level, int name, const void *value, socklen_t length) {
    if (is_faked(fd) && level == SOL_NETLINK)
        return 0;
    return REAL(setsockopt)(fd, level, name, value, length);
}

ssize_t sendto(int fd, const void *bytes, size_t size, int flags, const struct sockaddr *to,
               socklen_t length) {
    if (is_faked(fd))
        to = NULL, length = 0;
    return REAL(sendto)(fd, bytes, size, flags, to, length);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    struct msghdr copy = *message;
    if (is_faked(fd))
        copy.msg_name = NULL, copy.msg_namelen = 0;
    return REAL(sendmsg)(fd, &copy, flags);
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags) {
    socklen_t room = message->msg_namelen;
    ssize_t size = REAL(recvmsg)(fd, message, flags);
    if (is_faked(fd) && size >= 0) {
        fill(message->msg_name, &room);
        message->msg_namelen = room;
    }
    return size;
}

int close(int fd) {
    if (is_faked(fd))
        faked[fd] = 0;
    return REAL(close)(fd);
}
