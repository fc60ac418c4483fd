/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * cuDNN's descriptors on the CPU, and what runs the operations that they describe. */
#ifndef DT_TESTS_CUDA_CPU_DNN_H
#define DT_TESTS_CUDA_CPU_DNN_H

#include "cuda_cpu_impl.h"
#include "kernels/cuda/dnn_api.h"

#include <map>
#include <vector>

struct cucpu_dnn_attribute {
    int type;
    int64_t n;
    std::vector<unsigned char> bytes;
};
struct cucpu_dnn_descriptor {
    int kind, number = 0; /* number: of a configuration or an engine */
    bool ready = false;
    bool ran = false; /* a plan: its kernels are loaded */
    std::map<int, cucpu_dnn_attribute> has;
    std::vector<int64_t> reads, writes; /* of a graph: tensors of the caller's, by their ids */

    /* Element i of an attribute that there is. */
    template <typename T> T get(int name, int64_t i = 0) const
    {
        T x;

        memcpy(&x, has.at(name).bytes.data() + size_t(i) * sizeof(T), sizeof(T));
        return x;
    }
    const cucpu_dnn_descriptor *of(int name, int64_t i = 0) const
    {
        return get<cucpu_dnn_descriptor *>(name, i);
    }
    bool is(int name) const { return has.count(name) && get<unsigned char>(name) != 0; }
};

/* As the library says it; CUCPU_DNN_VERSION. */
size_t cucpu_dnn_version();
[[noreturn]] void cucpu_dnn_stop(const char *what);
/* Ends the program where an operation's tensors do not go together. */
void cucpu_dnn_check(const cucpu_dnn_descriptor *op);
/* The tensors that an operation reads, and the one that it writes. */
std::vector<const cucpu_dnn_descriptor *> cucpu_dnn_reads(const cucpu_dnn_descriptor *op);
const cucpu_dnn_descriptor *cucpu_dnn_writes(const cucpu_dnn_descriptor *op);
/* Where a tensor of the caller's lies: for kernels, or on the host. */
typedef std::map<int64_t, void *> cucpu_dnn_places;
/* All operations of a graph, in double; what is kept between them is rounded to its type. */
void cucpu_dnn_run(const cucpu_dnn_descriptor *graph, const cucpu_dnn_places &at);

#endif
