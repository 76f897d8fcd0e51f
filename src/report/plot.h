/*
 * report/plot.h: a run's curves as an SVG of its own: loss and evaluation loss above, learning rate
 * below, over the steps; of a model with experts their largest load below that.
 *
 * Values that are not finite are gaps. However long the run, a curve has at most four points for each
 * of its pixels: the first, lowest, highest and last value that fall on it.
 */
#ifndef TSR_REPORT_PLOT_H
#define TSR_REPORT_PLOT_H

#include "base/text.h"
#include "report/metrics_read.h"

/* `title` may be any text. TSR_EDATA: there is no step to draw. */
tsr_status tsr_plot_run(tsr_text *svg, const tsr_run_metrics *metrics, const char *title);

#endif
