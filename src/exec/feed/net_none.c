/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A disttrain that was built without ZeroMQ. */
#include "exec/feed/net.h"

static enum dt_status absent(struct dt_error *err)
{
    return dt_error_set(err, DT_ERR_INPUT,
                        "this disttrain was built without ZeroMQ, which carries data between "
                        "machines; install libzmq3-dev, then configure and build again");
}

bool dt_feed_net_works(void)
{
    return false;
}

enum dt_status dt_feed_net_keypair(struct dt_error *err, char own[DT_FEED_KEY_SIZE],
                                   char secret[DT_FEED_KEY_SIZE])
{
    (void)own;
    (void)secret;
    return absent(err);
}

enum dt_status dt_feed_net_listen(const char *address, const struct dt_feed_keys *keys,
                                  struct dt_error *err, struct dt_feed_net **out)
{
    (void)address;
    (void)keys;
    (void)out;
    return absent(err);
}

void dt_feed_net_where(const struct dt_feed_net *net, char out[DT_FEED_ADDRESS_SIZE])
{
    (void)net;
    out[0] = '\0';
}

enum dt_status dt_feed_net_new(int n, struct dt_error *err, struct dt_feed_net **out)
{
    (void)n;
    (void)out;
    return absent(err);
}

enum dt_status dt_feed_net_connect(struct dt_feed_net *net, int i, const char *address,
                                   const struct dt_feed_keys *keys, struct dt_error *err)
{
    (void)net;
    (void)i;
    (void)address;
    (void)keys;
    return absent(err);
}

void dt_feed_net_drop(struct dt_feed_net *net, int i)
{
    (void)net;
    (void)i;
}

bool dt_feed_net_send(struct dt_feed_net *net, const struct dt_feed_peer *to, const uint8_t *p,
                      size_t n)
{
    (void)net;
    (void)to;
    (void)p;
    (void)n;
    return false;
}

bool dt_feed_net_recv(struct dt_feed_net *net, int fd, int timeout_ms, struct dt_feed_peer *from,
                      const uint8_t **p, size_t *n)
{
    (void)net;
    (void)fd;
    (void)timeout_ms;
    (void)from;
    (void)p;
    (void)n;
    return false;
}

void dt_feed_net_close(struct dt_feed_net *net)
{
    (void)net;
}
