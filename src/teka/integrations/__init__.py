"""What plugs teka into other libraries; each module needs the library that it is named after."""
