/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Frames over ZeroMQ: one side listens to many, the other talks to several that listen.
 *
 * With keys every connection is CURVE: both sides prove theirs, everything is encrypted, and who is
 * not named in the key file is turned away before a frame of his is looked at.  Without keys only
 * this machine's own addresses are listened or connected to.  One caller at a time. */
#ifndef DT_EXEC_FEED_NET_H
#define DT_EXEC_FEED_NET_H

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DT_FEED_KEY_SIZE = 41, DT_FEED_PEERS_MAX = 256, DT_FEED_ADDRESS_SIZE = 280 };

struct dt_feed_keys { /* Z85 (ZeroMQ RFC 32), as zmq_curve_keypair has it */
    char own[DT_FEED_KEY_SIZE], secret[DT_FEED_KEY_SIZE];
    char peer[DT_FEED_PEERS_MAX][DT_FEED_KEY_SIZE]; /* who may connect; [0]: whom we connect to */
    int n_peers;
};
/* keys.c: a file of lines "public KEY", "secret KEY", "peer KEY"; others must not be able to read it. */
enum dt_status dt_feed_keys_read(const char *path, struct dt_error *err, struct dt_feed_keys *out);
/* New pairs: PATH for producers, PATH.train for training, each with the other's as its peer. */
enum dt_status dt_feed_keys_make(const char *path, struct dt_error *err);
/* "tcp://HOST:PORT" or "HOST:PORT" into the former; loopback: HOST is this machine's own. */
enum dt_status dt_feed_address(const char *text, struct dt_error *err,
                               char out[DT_FEED_ADDRESS_SIZE], bool *loopback);

struct
    dt_feed_peer { /* of a listener: who sent it; else the number of the producer in id[0], id[1] */
    uint8_t n, id[15];
};
static inline bool dt_feed_peer_is(const struct dt_feed_peer *a, const struct dt_feed_peer *b)
{
    if (a->n != b->n)
        return false;
    for (int i = 0; i < a->n; i++)
        if (a->id[i] != b->id[i])
            return false;
    return true;
}

struct dt_feed_net;
/* Is ZeroMQ, with CURVE, there? */
bool dt_feed_net_works(void);
enum dt_status dt_feed_net_keypair(struct dt_error *err, char own[DT_FEED_KEY_SIZE],
                                   char secret[DT_FEED_KEY_SIZE]);
/* keys NULL: plain.  Port 0 is any. */
enum dt_status dt_feed_net_listen(const char *address, const struct dt_feed_keys *keys,
                                  struct dt_error *err, struct dt_feed_net **out);
/* Where it listens. */
void dt_feed_net_where(const struct dt_feed_net *net, char out[DT_FEED_ADDRESS_SIZE]);
enum dt_status dt_feed_net_new(int n, struct dt_error *err, struct dt_feed_net **out);
/* Begins anew with the i-th of n: what was under way is dropped. */
enum dt_status dt_feed_net_connect(struct dt_feed_net *net, int i, const char *address,
                                   const struct dt_feed_keys *keys, struct dt_error *err);
void dt_feed_net_drop(struct dt_feed_net *net, int i);
/* false: that peer is gone, or never was. */
bool dt_feed_net_send(struct dt_feed_net *net, const struct dt_feed_peer *to, const uint8_t *p,
                      size_t n);
/* The next frame, which stays until the next call; false: none within the time, or `fd` (-1 = none)
 * can be read. */
bool dt_feed_net_recv(struct dt_feed_net *net, int fd, int timeout_ms, struct dt_feed_peer *from,
                      const uint8_t **p, size_t *n);
void dt_feed_net_close(struct dt_feed_net *net);

#endif
