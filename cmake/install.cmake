# cmake --install BUILD [--prefix DIR]: the program, both libraries, the headers, and what pkg-config and CMake's
# find_package(tessera) need to find them.
#
#   pkg-config --cflags --libs tessera              the shared library
#   target_link_libraries(mine PRIVATE tessera::tessera)          likewise; tessera::tessera_static is the archive
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# As they are built, the program and the library look for MPI, and for CUDA's libraries, where these were found. CMake's own
# build path of what is installed ends in an empty entry: they would look into the working directory too.
set_target_properties(tessera tessera_shared PROPERTIES
  INSTALL_RPATH "${CMAKE_BUILD_RPATH}" INSTALL_RPATH_USE_LINK_PATH ON BUILD_WITH_INSTALL_RPATH ON)
install(TARGETS tessera RUNTIME)
install(TARGETS tessera_loopback LIBRARY DESTINATION ${CMAKE_INSTALL_LIBEXECDIR})
install(TARGETS tessera_shared EXPORT tessera LIBRARY INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
# As they are installed, they look where the loader does (ldconfig, LD_LIBRARY_PATH), or where -DCMAKE_INSTALL_RPATH=DIR says.
foreach(file ${CMAKE_INSTALL_BINDIR}/$<TARGET_FILE_NAME:tessera> ${CMAKE_INSTALL_LIBDIR}/$<TARGET_FILE_NAME:tessera_shared>)
  install(CODE "file(RPATH_SET FILE \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${file}\" NEW_RPATH \"${CMAKE_INSTALL_RPATH}\")")
endforeach()
set_target_properties(tessera_shared PROPERTIES EXPORT_NAME tessera)
install(FILES ${TSR_LIBRARY_ARCHIVE} DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES ${PROJECT_SOURCE_DIR}/include/tessera.h ${PROJECT_SOURCE_DIR}/include/tessera_mpi.h ${PROJECT_SOURCE_DIR}/include/tessera_status.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

# ---- pkg-config ----

list(JOIN TSR_LIBRARY_LINK " " TSR_LIBRARY_LINK_LINE)
file(RELATIVE_PATH TSR_PREFIX_FROM_PC /usr/${CMAKE_INSTALL_LIBDIR}/pkgconfig /usr)
configure_file(${PROJECT_SOURCE_DIR}/cmake/tessera.pc.in ${CMAKE_BINARY_DIR}/tessera.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/tessera.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# ---- find_package(tessera) ----

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/tessera)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/tesseraConfig.cmake.in ${CMAKE_BINARY_DIR}/tesseraConfig.cmake
  INSTALL_DESTINATION ${package} PATH_VARS CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_INCLUDEDIR)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/tesseraConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/tesseraConfig.cmake ${CMAKE_BINARY_DIR}/tesseraConfigVersion.cmake
  DESTINATION ${package})
install(EXPORT tessera NAMESPACE tessera:: FILE tesseraTargets.cmake DESTINATION ${package})
