# Writes a C++ file that holds text files as one constant each.
#
#   cmake -D OUTPUT=FILE.cc -D HEADER=room/header.h -D NAMES=kA;kB -D FILES=a.css;b.js
#         -P embed_text.cmake
#
# A name listed twice holds both files, one after the other.

get_filename_component(folder ${OUTPUT} DIRECTORY)
file(MAKE_DIRECTORY ${folder})
set(constants ${NAMES})
list(REMOVE_DUPLICATES constants)
set(code "#include \"${HEADER}\"\n\nnamespace contextile {\n")
foreach(constant IN LISTS constants)
  string(APPEND code "\nconst std::string_view ${constant} =")
  foreach(name file IN ZIP_LISTS NAMES FILES)
    if(name STREQUAL constant)
      file(READ ${file} text)
      string(APPEND code "\n    R\"embedded(${text})embedded\"")
    endif()
  endforeach()
  string(APPEND code ";\n")
endforeach()
file(WRITE ${OUTPUT} "${code}\n}  // namespace contextile\n")
