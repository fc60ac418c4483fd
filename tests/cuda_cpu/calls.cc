// SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
//
// Every call of CUDA's runtime and of cuBLASLt is counted, and a test may let the n-th one of a function fail.
#include "cuda_cpu_impl.h"

#include <map>
#include <mutex>
#include <string>

namespace
{

struct counter {
    std::mutex lock;
    std::map<std::string, unsigned> calls;
    std::string failing;
    unsigned at = 0;
};

counter &counted()
{
    static counter c;

    return c;
}

} // namespace

bool cucpu_fails(const char *name)
{
    counter &c = counted();
    std::lock_guard<std::mutex> hold(c.lock);

    return ++c.calls[name] == c.at && c.failing == name;
}

// From now on call number `at` of `name` fails (0: none), counted anew.
extern "C" __attribute__((visibility("default"))) void cucpu_fail_at(const char *name, unsigned at)
{
    counter &c = counted();
    std::lock_guard<std::mutex> hold(c.lock);

    c.calls.clear();
    c.failing = name;
    c.at = at;
}

// Number i of the functions that have been called, and how often; NULL: there are no more.
extern "C" __attribute__((visibility("default"))) const char *cucpu_called(unsigned i,
                                                                           unsigned *calls)
{
    counter &c = counted();
    std::lock_guard<std::mutex> hold(c.lock);

    for (const auto &f : c.calls)
        if (i-- == 0) {
            *calls = f.second;
            return f.first.c_str();
        }
    return nullptr;
}
