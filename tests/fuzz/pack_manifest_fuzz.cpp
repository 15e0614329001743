// Any bytes as a pack's manifest: no crash, and what is accepted is written back as the same manifest, with
// every part inside the blob.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "files/pack_manifest.h"

using namespace dgemma::files;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const auto manifest = parse_manifest({reinterpret_cast<const char*>(data), size}, "input");
    if (!manifest) return 0;
    const std::string written = write_manifest(*manifest);
    const auto again = parse_manifest(written, "what was written");
    if (!again || write_manifest(*again) != written) std::abort();
    for (const PackTensor& tensor : manifest->tensors) {
        for (const NamedPart& named : kPackParts) {
            const PackPart& part = tensor.*named.part;
            if (part.offset > manifest->blob_bytes || part.bytes > manifest->blob_bytes - part.offset)
                std::abort();
        }
    }
    return 0;
}
