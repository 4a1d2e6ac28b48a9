/* A shared library that is no plugin. */
int not_a_plugin(void);
__attribute__((visibility("default"))) int not_a_plugin(void)
{
	return 0;
}
