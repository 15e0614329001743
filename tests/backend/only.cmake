# The tests of the CPU backend alone, with a GoogleTest made of its sources, on a processor that is emulated. Each
# run forces every table of products its processor has, and checks that the best one is what it would choose.
set(BUILD_GMOCK OFF)
set(INSTALL_GTEST OFF)
set(DGEMMA_GTEST_SOURCE /usr/src/googletest CACHE PATH "Where GoogleTest's sources are")
add_subdirectory(${DGEMMA_GTEST_SOURCE} ${CMAKE_BINARY_DIR}/googletest EXCLUDE_FROM_ALL SYSTEM)

file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*_test.cpp)
add_executable(test_backend ${sources})
target_include_directories(test_backend PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(test_backend PRIVATE dgemma_backend gtest gtest_main)

# A processor, the instruction set that is best on it, and which tests; an emulator is slow, and the plain kernels
# are the same on all three.
function(dgemma_emulated processor best filter)
  add_test(NAME backend.on_${processor} COMMAND test_backend --gtest_filter=${filter})
  # QEMU_CPU: how the emulator is told.
  set_tests_properties(backend.on_${processor} PROPERTIES TIMEOUT 3600
                       ENVIRONMENT "QEMU_CPU=${processor};DGEMMA_BEST_ISA=${best}")
endfunction()
set(products "Tables/Dots.*:InstructionSets.*")
dgemma_emulated(cortex-a53 neon "${products}:Tables/Plain.*/neon_*")
dgemma_emulated(neoverse-n1 neon_dot "${products}")
dgemma_emulated(max neon_i8mm_bf16 "${products}")
