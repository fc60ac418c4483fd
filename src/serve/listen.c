/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "serve/listen.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BACKLOG = 32 };

static int open_at(const struct addrinfo *a)
{
    int fd = socket(a->ai_family, a->ai_socktype, a->ai_protocol), yes = 1;

    if (fd < 0)
        return -1;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    fcntl(fd, F_SETFL,
          fcntl(fd, F_GETFL) | O_NONBLOCK); /* a visitor may have left before accept() */
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    yes = errno;
    close(fd);
    errno = yes;
    return -1;
}

static void name_socket(int fd, char *at, size_t size)
{
    struct sockaddr_storage address;
    socklen_t len = sizeof(address);
    char host[128] = "?", port[16] = "?";

    if (getsockname(fd, (struct sockaddr *)&address, &len) == 0)
        getnameinfo((struct sockaddr *)&address, len, host, sizeof(host), port, sizeof(port),
                    NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(at, size, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
}

enum dt_status dt_serve_listen(const char *host, int port, struct dt_error *err, char *at,
                               size_t size, int *fd)
{
    struct addrinfo want = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *found = NULL;
    char service[16];
    int failed, s = -1;

    snprintf(service, sizeof(service), "%d", port);
    failed = getaddrinfo(host ? host : "127.0.0.1", service, &want, &found);
    if (failed)
        return dt_error_set(err, DT_ERR_USAGE, "cannot listen at \"%s\": %s", host ? host : "",
                            gai_strerror(failed));
    for (const struct addrinfo *a = found; a && s < 0; a = a->ai_next)
        s = open_at(a);
    failed = errno;
    freeaddrinfo(found);
    if (s < 0)
        return dt_error_set(err, failed == EADDRINUSE ? DT_ERR_USAGE : DT_ERR_IO,
                            "cannot listen at %s, port %d: %s%s", host ? host : "127.0.0.1", port,
                            strerror(failed),
                            failed == EADDRINUSE ? " (--port 0 takes any that is free)" : "");
    name_socket(s, at, size);
    *fd = s;
    return DT_OK;
}
