# Man pages, and completions for bash, zsh and fish, made by a program of the same tables as --help, and installed.
set(TSR_SHARE ${CMAKE_BINARY_DIR}/share)
set(templates ${PROJECT_SOURCE_DIR}/tools/completion)
add_executable(tessera_pages tools/pages.c)
target_link_libraries(tessera_pages PRIVATE tsr_cli ${TSR_FOLDERS})
add_custom_command(OUTPUT ${TSR_SHARE}/made
  COMMAND ${CMAKE_COMMAND} -E rm -rf ${TSR_SHARE}
  COMMAND ${CMAKE_COMMAND} -E make_directory ${TSR_SHARE}
  COMMAND tessera_pages ${templates} ${TSR_SHARE}
  COMMAND ${CMAKE_COMMAND} -E touch ${TSR_SHARE}/made
  DEPENDS tessera_pages ${templates}/tessera.bash.in ${templates}/_tessera.in ${templates}/tessera.fish.in
  COMMENT "man pages and completions" VERBATIM)
add_custom_target(tessera_share ALL DEPENDS ${TSR_SHARE}/made)
install(DIRECTORY ${TSR_SHARE}/man/ DESTINATION ${CMAKE_INSTALL_MANDIR})
foreach(folder bash-completion zsh fish)
  install(DIRECTORY ${TSR_SHARE}/${folder} DESTINATION ${CMAKE_INSTALL_DATADIR})
endforeach()
