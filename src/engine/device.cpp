#include "engine/device.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "backend/cuda/cuda.h"
#include "base/quote.h"

namespace dgemma::engine {

Result<std::vector<Gpu>> list_gpus() {
    DGEMMA_TRY(const std::vector<backend::CudaDevice> devices, backend::cuda_devices());
    std::vector<Gpu> out;
    out.reserve(devices.size());
    for (const backend::CudaDevice& d : devices)
        out.push_back({d.index, d.name, d.major, d.minor, d.memory_bytes, d.free_bytes, d.major >= 8});
    return out;
}

Result<Device> choose_device(std::string_view name) {
    if (name == "cpu") return Device{};
    const bool any = name == "auto";
    if (any || name == "cuda") {
        std::string why;
        if (!backend::cuda_available(&why)) {
            if (any) return Device{};
            return Error{ErrorKind::unsupported, why};
        }
        DGEMMA_TRY(const std::vector<Gpu> gpus, list_gpus());
        const auto usable = std::find_if(gpus.begin(), gpus.end(), [](const Gpu& g) { return g.usable; });
        return Device{BackendKind::cuda, usable == gpus.end() ? 0 : usable->index};
    }
    if (name.starts_with("cuda:")) {
        int index = 0;
        const char* end = name.data() + name.size();
        const auto [stop, problem] = std::from_chars(name.data() + 5, end, index);
        if (problem == std::errc{} && stop == end && index >= 0) return Device{BackendKind::cuda, index};
    }
    return Error{ErrorKind::usage,
                 fmt::format("there is no device {}: choose from auto, cpu, cuda, and cuda:N for the Nth GPU",
                             quote(name))};
}

}  // namespace dgemma::engine
