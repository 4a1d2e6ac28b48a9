/* The prompts of the demo: one long document, and two ways to go on. */
#ifndef TINYLM_DEMO_TEXT_H
#define TINYLM_DEMO_TEXT_H

extern const char demo_document[];
extern const char demo_ending_a[], demo_ending_b[];

#endif
