// SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
//
// cudnn_plans DRIVER [FOLDER [all]]: plans of NVIDIA's own cuDNN for cards that are not here, of the module's graphs at the
// shapes of the presets, for sm_80 one of each kind or all.  DRIVER is the library of tests/fake_driver.c, FOLDER where cuDNN is.  One line for a plan; exits
// 1 where one is missing that should be there (or there that should not), 77 where the library cannot be used.
#include "kernels/cuda/dnn_graph.h"

#include <cstdio>
#include <cstring>
#include <dlfcn.h>
#include <string>

namespace
{

dt_cuda_dnn dnn;
void *card;
int wrong;
const char *arch;

// The first version that takes the properties of a card that is not there (cudnn-frontend, deviceless_aot_compilation.cpp).
enum { FIRST = 91100 };
// The one whose answers are known (9.19): others may plan more, or ask for other properties.
bool known()
{
    return dnn.GetVersion() / 100 == 919;
}
enum answer { NO_PLAN, PLAN, EITHER };

// The names are those that the library asks for; the values NVIDIA's, of the H100 SXM5 and of the A100 SXM4 with 80 GB
// (CUDA C++ Programming Guide, "Compute Capabilities", and both cards' white papers; clocks recalled).
const char *const same =
    "\"driverVer\": 13000, \"cudaDeviceId\": 0, \"maxGridSize\": [2147483647, 65535, 65535], "
    "\"maxBlockSize\": [1024, 1024, 64], \"regsPerBlock\": 65536, \"warpSize\": 32, "
    "\"maxSharedMemoryPerBlock\": 49152, \"reservedSharedMemoryPerBlock\": 1024, "
    "\"maxRegistersPerSM\": 65536, \"maxCtasPerSM\": 32, \"maxThreadsPerBlock\": 1024, "
    "\"maxThreadsPerSM\": 2048, \"pciDeviceId\": 0, \"isTccDriver\": 0, "
    "\"supportCoopLaunch\": 1, ";
const char *const h100 =
    "\"deviceVer\": 900, \"multiProcessorCount\": 132, "
    "\"maxSharedMemoryPerBlockOptin\": 232448, \"totalGlobalMem\": 85028765696, "
    "\"smClockRateKHz\": 1980000, \"memClockRateKHz\": 2619000, "
    "\"l2CacheSize\": 52428800, \"deviceName\": \"NVIDIA H100 80GB HBM3\"";
const char *const a100 =
    "\"deviceVer\": 800, \"multiProcessorCount\": 108, "
    "\"maxSharedMemoryPerBlockOptin\": 166912, \"totalGlobalMem\": 85028765696, "
    "\"smClockRateKHz\": 1410000, \"memClockRateKHz\": 1593000, "
    "\"l2CacheSize\": 41943040, \"deviceName\": \"NVIDIA A100-SXM4-80GB\"";

bool load(const char *driver, const char *folder)
{
    std::string path = folder ? std::string(folder) + "/libcudnn.so.9" : "libcudnn.so.9";
    void *so;

    // by its name it is the driver of all that comes after it
    if (!dlopen(driver, RTLD_NOW | RTLD_GLOBAL)) {
        printf("%s\n", dlerror());
        exit(1);
    }
    so = dlopen(path.c_str(), RTLD_NOW);
    if (!so) {
        printf("SKIP: %s\n", dlerror());
        return false;
    }
#define X(name, result, args)                                                                      \
    void *p_##name = dlsym(so, "cudnn" #name);                                                     \
    if (!p_##name) {                                                                               \
        printf("SKIP: libcudnn.so.9 lacks cudnn" #name "\n");                                      \
        return false;                                                                              \
    }                                                                                              \
    memcpy(&dnn.name, &p_##name, sizeof(void *));
    DT_CUDA_DNN_FUNCTIONS(X)
#undef X
    if (dnn.GetVersion() < FIRST)
        printf("SKIP: cuDNN %zu, and %d is the first that plans for other cards\n",
               dnn.GetVersion(), int(FIRST));
    return dnn.GetVersion() >= FIRST;
}

bool choose(const char *name, const char *properties)
{
    std::string json = std::string("{") + same + properties + "}";
    int st = dnn.BackendCreateDescriptor(DT_DNN_DEVICEPROP, &card);

    arch = name;
    if (st == DT_DNN_SUCCESS)
        st = dnn.BackendSetAttribute(card, DT_DNN_DEVICEPROP_JSON, DT_DNN_T_CHAR,
                                     int64_t(json.size()), json.data());
    if (st == DT_DNN_SUCCESS)
        st = dnn.BackendFinalize(card);
    if (st != DT_DNN_SUCCESS)
        printf("%s%s: status %d for the card's properties\n", known() ? "" : "SKIP: ", name, st);
    return st == DT_DNN_SUCCESS;
}

void plan(const char *what, const dt_cuda_dnn_shape &s, answer there)
{
    static dt_cuda_dnn_graph g;
    const dt_cuda_dnn_card for_card = {nullptr, card};
    int64_t workspace = 0;
    int tried = 0;
    char text[256] = "";
    void *p;

    dt_cuda_dnn_graph_begin(&g, &dnn);
    if (s.what == DT_DNN_ATTENTION_FWD || s.what == DT_DNN_ATTENTION_BWD)
        dt_cuda_dnn_attention_ops(&g, &s);
    else
        dt_cuda_dnn_conv_ops(&g, &s);
    p = dt_cuda_dnn_plan(&g, &for_card, int64_t(256) << 20, &workspace, &tried);
    if (p) {
        printf("%s %s: %d operations, plan, %.1f MiB of workspace\n", arch, what, g.n_ops,
               double(workspace) / 0x1p20);
    } else {
        dnn.GetLastErrorString(text, sizeof(text));
        printf("%s %s: %d operations, no plan of %d (status %d): %.200s\n", arch, what, g.n_ops,
               tried, g.status, text);
    }
    if (there != EITHER && (p != nullptr) != (there == PLAN)) {
        printf("that is wrong: %s\n",
               there == PLAN ? "there should be one" : "there should be none");
        wrong++;
    }
    fflush(stdout);
    dt_cuda_dnn_graph_end(&g);
}

// Forward with a bias, with a residual where there are as many channels, and both gradients.
void conv(int c_in, int c_out, int stride, int64_t n, int64_t side)
{
    static const char *const names[] = {"forward", "input's gradient", "filter's gradient"};

    for (int what = DT_DNN_CONV_FWD; what <= DT_DNN_CONV_FILTER; what++) {
        char text[128];
        dt_cuda_dnn_shape s;

        memset(&s, 0, sizeof(s));
        s.what = what;
        s.bias = what == DT_DNN_CONV_FWD;
        s.residual = s.bias && c_in == c_out && stride == 1;
        s.c_in = c_in;
        s.c_out = c_out;
        s.kernel = 3;
        s.stride = stride;
        s.pad = 1;
        s.n = n;
        s.h = s.w = side;
        snprintf(text, sizeof(text), "convolution %d -> %d, %lld pixels, stride %d, %s", c_in,
                 c_out, (long long)side, stride, names[what]);
        plan(text, s, PLAN);
    }
}

struct rows {
    const char *name;
    int heads, kv_heads, dim;
    bool causal;
    int64_t n, lq, lk;
};
void attention(const rows &r, answer backward)
{
    int capability = atoi(arch + strlen("sm_"));

    for (int what = DT_DNN_ATTENTION_FWD; what <= DT_DNN_ATTENTION_BWD; what++) {
        bool self = r.lq == r.lk;
        char text[128];
        dt_cuda_dnn_shape s;

        memset(&s, 0, sizeof(s));
        s.what = what;
        s.heads = r.heads;
        s.kv_heads = r.kv_heads;
        s.head_dim = r.dim;
        s.causal = r.causal;
        s.n = r.n;
        s.lq = r.lq;
        s.lk = r.lk;
        // one product makes all three where queries and keys are of the same rows
        s.stride_q = (self ? r.heads + 2 * r.kv_heads : r.heads) * r.dim;
        s.stride_k = s.stride_v = self ? s.stride_q : 2 * r.kv_heads * r.dim;
        s.stride_o = r.heads * r.dim;
        snprintf(text, sizeof(text), "attention %s, %s", r.name,
                 what == DT_DNN_ATTENTION_FWD ? "forward" : "backward");
        if (dt_cuda_dnn_attention_fails(&s, dnn.GetVersion(), capability))
            printf("%s %s: not asked for\n", arch, text);
        else
            plan(text, s, what == DT_DNN_ATTENTION_FWD ? PLAN : backward);
    }
}

// One of each kind.
void few()
{
    conv(320, 320, 1, 4, 64); // sd21-unet: latents of 512 x 512
    attention({"llama-7b", 32, 32, 128, true, 1, 4096, 4096}, PLAN);
}

void others()
{
    conv(320, 320, 2, 4, 64);
    conv(2560, 1280, 1, 4, 16);
    attention({"llama3-1b", 32, 8, 64, true, 2, 4096, 4096}, PLAN);
    attention({"llama-70b, tp 8", 8, 1, 128, true, 1, 8192, 8192}, PLAN);
    attention({"vit-huge", 16, 16, 80, false, 16, 257, 257}, PLAN);
    attention({"sd21-unet", 5, 5, 64, false, 4, 4096, 4096}, PLAN);
    attention({"sd21-unet, context", 5, 5, 64, false, 4, 4096, 77}, PLAN);
    attention({"audioldm-unet", 20, 20, 32, false, 4, 64, 64}, PLAN);
}

// Stable Diffusion 1.5's widest heads, which are ours on an A100.
void widest(bool sm_90)
{
    attention({"heads of 160", 8, 8, 160, false, 4, 256, 256}, sm_90     ? PLAN
                                                               : known() ? NO_PLAN
                                                                         : EITHER);
}

} // namespace

int main(int argc, char **argv)
{
    bool all = argc > 3 && strcmp(argv[3], "all") == 0;

    if (argc < 2)
        return 2;
    if (!load(argv[1], argc > 2 && argv[2][0] ? argv[2] : nullptr))
        return 77;
    for (int sm_90 = 0; sm_90 < 2; sm_90++) {
        if (!choose(sm_90 ? "sm_90" : "sm_80", sm_90 ? h100 : a100))
            return known() ? 1 : 77;
        few();
        if (sm_90 || all)
            others();
        widest(sm_90);
        dnn.BackendDestroyDescriptor(card);
    }
    return wrong > 0;
}
