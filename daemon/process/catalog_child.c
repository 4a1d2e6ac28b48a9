/* See process/catalog_child.h. */
#include "daemon/process/catalog_child.h"

#include <string.h>

#include "store/catalog/catalog.h"

bool catalog_child(int argc, char *const argv[], int *code)
{
	if (argc != 3 || strcmp(argv[1], "catalog-check"))
		return false;
	*code = catalog_check(argv[2]);
	return true;
}
