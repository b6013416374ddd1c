// What echarts.min.js beside this file is built from: see README.md.
import { use } from "echarts/core";
import { CustomChart, LineChart, TreemapChart } from "echarts/charts";
import { AriaComponent, AxisPointerComponent, DataZoomComponent, GridComponent, LegendComponent, TooltipComponent } from "echarts/components";
import { SVGRenderer } from "echarts/renderers";

use([CustomChart, LineChart, TreemapChart, AriaComponent, AxisPointerComponent, DataZoomComponent, GridComponent, LegendComponent, TooltipComponent, SVGRenderer]);

export { graphic, init, version } from "echarts/core";
