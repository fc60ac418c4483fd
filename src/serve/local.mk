# SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
noinst_LIBRARIES += libdtserve.a
libdtserve_a_SOURCES = \
	src/serve/allowed.c \
	src/serve/allowed.h \
	src/serve/lanes.c \
	src/serve/lanes.h \
	src/serve/listen.c \
	src/serve/listen.h \
	src/serve/page.h \
	src/serve/request.c \
	src/serve/request.h \
	src/serve/server.h \
	src/serve/worker.c \
	src/serve/worker.h
nodist_libdtserve_a_SOURCES = src/serve/page.c
EXTRA_DIST += src/serve/page.css src/serve/page.html src/serve/page.js
if HAVE_SERVE
libdtserve_a_SOURCES += src/serve/server.c
else
libdtserve_a_SOURCES += src/serve/server_none.c
endif

# The page as arrays: od and sed are in POSIX.
SERVE_PAGE = $(srcdir)/src/serve/page.css $(srcdir)/src/serve/page.html $(srcdir)/src/serve/page.js
CLEANFILES += src/serve/page.c
src/serve/page.c: $(SERVE_PAGE) $(srcdir)/src/serve/local.mk
	$(AM_V_GEN)$(MKDIR_P) src/serve && { \
	    echo '/* made by src/serve/local.mk */'; \
	    echo '#include "serve/page.h"'; \
	    for f in $(SERVE_PAGE); do \
	        n=dt_serve_page_`echo $$f | sed 's/.*\.//'`; \
	        echo "const unsigned char $$n[] = {"; \
	        od -An -v -t x1 $$f | sed 's/ *\([0-9a-f][0-9a-f]\)/0x\1,/g' && \
	        echo "};" && echo "const size_t $${n}_size = sizeof($$n);" || exit 1; \
	    done; } >$@.tmp && mv $@.tmp $@
