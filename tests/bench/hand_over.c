// Lets perftest's ib_write_lat run on one CPU. Its two ends spin on their memory until the other one's write has landed
// there; on one CPU that lasts until the other's time slice. Loaded before it (LD_PRELOAD), this gives the CPU to the
// other end whenever a write of ours is acknowledged, which is when ib_write_lat has nothing left to do but to spin.
//
//   cc -O2 -shared -fPIC -o hand_over.so hand_over.c -ldl
//
// Both ends have to be of one real-time priority (chrt --rr): only there does sched_yield mean the next one.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <sched.h>

static int (*poll_cq)(struct ibv_cq *, int, struct ibv_wc *);

static int poll_and_hand_over(struct ibv_cq *cq, int room, struct ibv_wc *completions) {
    int found = poll_cq(cq, room, completions);
    if (found > 0) sched_yield();
    return found;
}

// ibv_poll_cq is inline and goes through the context's table, which is there once a queue is.
struct ibv_cq *ibv_create_cq(struct ibv_context *context, int entries, void *user, struct ibv_comp_channel *channel,
                             int vector) {
    struct ibv_cq *(*create)(struct ibv_context *, int, void *, struct ibv_comp_channel *, int) =
        dlsym(RTLD_NEXT, "ibv_create_cq");
    struct ibv_cq *cq = create(context, entries, user, channel, vector);
    if (cq && context->ops.poll_cq != poll_and_hand_over) {
        poll_cq = context->ops.poll_cq;
        context->ops.poll_cq = poll_and_hand_over;
    }
    return cq;
}
