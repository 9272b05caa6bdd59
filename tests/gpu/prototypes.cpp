/* Our prototypes and constants of plugins/backends/cuda/driver.h against NVIDIA's headers: compiled, never run. */
#include "backends/cuda/driver.h"

#include <cublas_v2.h>
#include <cuda.h>
#include <nvrtc.h>

#include <type_traits>

/* Is a value handed over in the same way? A void pointer of ours stands for any handle, an integer for an enumeration
 * of its size. */
template <class Ours, class Theirs> constexpr bool is_alike()
{
    if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) {
        using our_target = std::remove_pointer_t<Ours>;
        using their_target = std::remove_pointer_t<Theirs>;
        if constexpr (std::is_const_v<our_target> != std::is_const_v<their_target>)
            return false;
        else if constexpr (std::is_void_v<our_target>)
            return std::is_void_v<their_target> || std::is_class_v<their_target>;
        else
            return is_alike<std::remove_const_t<our_target>, std::remove_const_t<their_target>>();
    } else if constexpr (std::is_integral_v<Ours> && std::is_enum_v<Theirs>) {
        return sizeof(Ours) == sizeof(Theirs);
    } else if constexpr (std::is_integral_v<Ours> && std::is_integral_v<Theirs>) {
        return sizeof(Ours) == sizeof(Theirs) && std::is_signed_v<Ours> == std::is_signed_v<Theirs>;
    } else {
        return std::is_same_v<Ours, Theirs>;
    }
}

template <class Ours> struct prototype;
template <class OurResult, class... Our> struct prototype<OurResult (*)(Our...)> {
    template <class TheirResult, class... Their> static constexpr bool fits(TheirResult (*)(Their...))
    {
        if constexpr (sizeof...(Our) != sizeof...(Their))
            return false;
        else
            return is_alike<OurResult, TheirResult>() && (is_alike<Our, Their>() && ...);
    }
};

/* Of two functions C++ sees a second one, which takes an older type for the computation; C has only these. */
using gemm_ex = cublasStatus_t (*)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const void *,
                                   const void *, cudaDataType, int, const void *, cudaDataType, int, const void *,
                                   void *, cudaDataType, int, cublasComputeType_t, cublasGemmAlgo_t);
using gemm_batched_ex = cublasStatus_t (*)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                                           const void *, const void *const[], cudaDataType, int, const void *const[],
                                           cudaDataType, int, const void *, void *const[], cudaDataType, int, int,
                                           cublasComputeType_t, cublasGemmAlgo_t);

template <class Ours, class Result, class... Their> constexpr bool fits(Result (*theirs)(Their...))
{
    return prototype<Ours>::fits(theirs);
}
template <class Ours> constexpr bool fits(gemm_ex theirs)
{
    return prototype<Ours>::fits(theirs);
}
template <class Ours> constexpr bool fits(gemm_batched_ex theirs)
{
    return prototype<Ours>::fits(theirs);
}

#define CHECK(result, name, parameters, arguments)                                                                     \
    static_assert(fits<decltype(fuse_driver::name)>(&name), #name " has another prototype");
FUSE_DRIVER_CALLS(CHECK)
FUSE_CUBLAS_CALLS(CHECK)
FUSE_NVRTC_CALLS(CHECK)

#define CHECK_CONSTANT(ours, theirs) static_assert(int(ours) == int(theirs), #theirs " has another value");
CHECK_CONSTANT(FUSE_CU_SUCCESS, CUDA_SUCCESS)
CHECK_CONSTANT(FUSE_CU_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY)
CHECK_CONSTANT(FUSE_CU_NO_DEVICE, CUDA_ERROR_NO_DEVICE)
CHECK_CONSTANT(FUSE_CU_MULTIPROCESSOR_COUNT, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
CHECK_CONSTANT(FUSE_CU_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
CHECK_CONSTANT(FUSE_CU_CAPABILITY_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
CHECK_CONSTANT(FUSE_CU_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING)
CHECK_CONSTANT(FUSE_CU_EVENT_DISABLE_TIMING, CU_EVENT_DISABLE_TIMING)
CHECK_CONSTANT(FUSE_CUBLAS_SUCCESS, CUBLAS_STATUS_SUCCESS)
CHECK_CONSTANT(FUSE_CUBLAS_NO_TRANSPOSE, CUBLAS_OP_N)
CHECK_CONSTANT(FUSE_CUBLAS_TRANSPOSE, CUBLAS_OP_T)
CHECK_CONSTANT(FUSE_CUBLAS_FLOAT32, CUDA_R_32F)
CHECK_CONSTANT(FUSE_CUBLAS_BFLOAT16, CUDA_R_16BF)
CHECK_CONSTANT(FUSE_CUBLAS_COMPUTE_FLOAT32, CUBLAS_COMPUTE_32F)
CHECK_CONSTANT(FUSE_CUBLAS_COMPUTE_TF32, CUBLAS_COMPUTE_32F_FAST_TF32)
CHECK_CONSTANT(FUSE_CUBLAS_DEFAULT_ALGORITHM, CUBLAS_GEMM_DEFAULT)
CHECK_CONSTANT(FUSE_CUBLAS_FULL_REDUCTIONS, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION)
CHECK_CONSTANT(FUSE_NVRTC_SUCCESS, NVRTC_SUCCESS)
CHECK_CONSTANT(FUSE_NVRTC_COMPILATION, NVRTC_ERROR_COMPILATION)
