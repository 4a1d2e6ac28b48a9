/* --help, written from the table of commands in the form of a man page. */
#ifndef TERRACE_CTL_HELP_H
#define TERRACE_CTL_HELP_H

struct ctl_command;

void ctl_help_all(void);
void ctl_help_command(const struct ctl_command *command);

#endif
