// sm90_cluster.cuh of src/backend/cuda on the emulated machine.
#pragma once

#include "backend/cuda/sm90.cuh"

namespace dgemma::backend::cuda {

inline int cluster_rank() { return static_cast<int>(emulated::rank_in_cluster()); }
// In two halves that no kernel has anything between; all of it is done in the second.
inline void cluster_arrive() {}
inline void cluster_wait() {
    emulated::Machine& m = emulated::machine;
    emulated::meet(m.clusters[m.current->block->number / m.cluster], static_cast<int>(m.cluster * m.threads));
}
inline std::uint32_t address_in(const void* own, int rank) {
    return shared_address(own) | static_cast<std::uint32_t>(rank + 1) << emulated::rank_bit;
}
inline void barrier_arrive_at(std::uint32_t address) { emulated::arrive(address); }
inline void store_at(std::uint32_t address, int4 x) { std::memcpy(shared_pointer(address), &x, sizeof x); }
inline void barrier_release_at(std::uint32_t address) { emulated::arrive(address); }
inline void barrier_acquire(std::uint64_t* barrier, int phase) { barrier_wait(barrier, phase); }
template <bool All>
void copy_box_at(std::uint16_t mask, std::uint32_t to, const CUtensorMap* map, int column, int row,
                 std::uint32_t barrier) {
    if (!All) copy_box_to(to, *map, column, row, barrier);
    for (std::uint32_t rank = 0; All && rank < emulated::machine.cluster; ++rank) {
        const std::uint32_t other = (rank + 1) << emulated::rank_bit;
        if (mask >> rank & 1) copy_box_to(to | other, *map, column, row, barrier | other);
    }
}
inline void barrier_expect_at(std::uint32_t barrier, int bytes) { emulated::arrive(barrier, bytes); }
inline void barrier_wait_at(std::uint32_t barrier, int phase) { wait_at(barrier, phase); }

}  // namespace dgemma::backend::cuda
