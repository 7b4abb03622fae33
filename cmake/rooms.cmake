# For code that only prints: a third of its compile time is optimization without a noticeable
# effect.
set(QUICK $<$<CONFIG:Release>:-O1>)

# contextile_compile_together(TARGET): compiles several of its sources at a time (CONTEXTILE_UNITY).
function(contextile_compile_together target)
  if(CONTEXTILE_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      # Each source is an included file to the compiler, which warns of classes there whose members
      # have local types.
      target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
    endif()
  endif()
endfunction()

# contextile_room(NAME SOURCES files… DEPENDS rooms… LINK libraries… OPTIONS compiler's…): sources
# of the current folder as the static library contextile_NAME, installed as contextile::NAME.
# DEPENDS are the rooms of docs/architecture.md, OPTIONS the compiler's for this library alone.
# Sources with options of their own are compiled one by one, the others several at a time
# (CONTEXTILE_UNITY).
function(contextile_room name)
  cmake_parse_arguments(ROOM "" "" "SOURCES;DEPENDS;LINK;OPTIONS" ${ARGN})
  list(TRANSFORM ROOM_DEPENDS PREPEND contextile_)
  add_library(contextile_${name} STATIC ${ROOM_SOURCES})
  add_library(contextile::${name} ALIAS contextile_${name})
  set_target_properties(contextile_${name} PROPERTIES
    POSITION_INDEPENDENT_CODE ON EXPORT_NAME ${name})
  contextile_compile_together(contextile_${name})
  target_compile_features(contextile_${name} PUBLIC cxx_std_20)
  target_include_directories(contextile_${name}
    PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
           $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
    PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(contextile_${name}
    PUBLIC ${ROOM_DEPENDS}
    PRIVATE $<BUILD_INTERFACE:contextile_flags> fmt::fmt ${ROOM_LINK})
  target_compile_options(contextile_${name} PRIVATE ${ROOM_OPTIONS})
  if(CONTEXTILE_PCH)  # once for every set of options, by the first room that has it
    string(MAKE_C_IDENTIFIER "CONTEXTILE_PRECOMPILED_${ROOM_OPTIONS}" precompiled)
    get_property(first GLOBAL PROPERTY ${precompiled})
    if(first)
      target_precompile_headers(contextile_${name} REUSE_FROM ${first})
    else()
      target_precompile_headers(contextile_${name} PRIVATE ${COMMON_HEADERS})
      set_property(GLOBAL PROPERTY ${precompiled} contextile_${name})
    endif()
  endif()
  install(TARGETS contextile_${name} EXPORT contextileTargets)
endfunction()

# contextile_source_options(FILES sources… OPTIONS compiler's… [NO_PCH]): options of single sources.
# CMake itself accepts properties of a source that does not exist without an error.
function(contextile_source_options)
  cmake_parse_arguments(SOURCE "NO_PCH" "" "FILES;OPTIONS" ${ARGN})
  if(SOURCE_UNPARSED_ARGUMENTS OR NOT SOURCE_FILES OR NOT SOURCE_OPTIONS)
    message(FATAL_ERROR "source options: expected FILES and OPTIONS, found '${ARGN}'")
  endif()
  foreach(file IN LISTS SOURCE_FILES)
    if(NOT EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${file})
      message(FATAL_ERROR "source options: expected ${file} in ${CMAKE_CURRENT_SOURCE_DIR}, found no such file")
    endif()
  endforeach()
  set_source_files_properties(${SOURCE_FILES} PROPERTIES COMPILE_OPTIONS "${SOURCE_OPTIONS}")
  if(SOURCE_NO_PCH)
    set_source_files_properties(${SOURCE_FILES} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
  endif()
endfunction()
